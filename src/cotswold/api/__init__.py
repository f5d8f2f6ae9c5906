"""What Python users call: one file a verb, and `Run`; `import cotswold` hands the names on."""
