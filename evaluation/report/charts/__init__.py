"""Charts of the report as inline SVG."""
