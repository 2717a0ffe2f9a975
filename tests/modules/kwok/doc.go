// Package kwok pins the program that plays kubelets for `cargo lab scale`. It holds no code.
package kwok
