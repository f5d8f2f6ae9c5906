"""Parts that several commands share: tables, help, streams."""
