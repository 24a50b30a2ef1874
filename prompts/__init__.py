"""Built-in prompt templates, one TOML file each; `twinset.table.templates` reads them."""
