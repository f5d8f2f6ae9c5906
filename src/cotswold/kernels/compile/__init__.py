"""From LLVM code to machine code: how it is written, named, compiled, tried and kept."""
