"""Built-in prompt templates, one TOML file each; `twinset.templates` reads them."""
