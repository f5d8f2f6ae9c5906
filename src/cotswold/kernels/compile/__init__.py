"""From LLVM code to machine code: code generation, cache keys, compilation, self-tests and the cache."""
