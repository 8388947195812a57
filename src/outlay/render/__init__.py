"""The report kit: a report is a list of blocks, drawn as text and as an HTML page. It knows no particular report."""
