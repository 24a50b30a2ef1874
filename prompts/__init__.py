"""Built-in prompt templates, one TOML file each; `twinset.data.templates` reads them."""
