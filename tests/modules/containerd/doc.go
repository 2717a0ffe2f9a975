// Package containerd pins the container runtime that the lab runs. It holds no code.
package containerd
