// Package kwok pins the program that simulates kubelets for `cargo lab scale`. It holds no code.
package kwok
