// Package kubernetes pins the versions of the control plane and node binaries that the lab runs.
// It holds no code: the tools are listed in go.mod.
package kubernetes
