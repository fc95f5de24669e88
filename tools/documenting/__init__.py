"""What the generated parts of the documentation are made of: each module reads one source, and writes Markdown."""
