"""The functions that Python users call, one module per verb, and `Run`; `import cotswold` exports them."""
