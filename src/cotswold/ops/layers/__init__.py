"""Operations of layers that torch has too, by the library's kernels."""
