// Package kubernetes pins the versions of the control plane and node binaries of the lab. It holds no code: the tools
// are listed in go.mod.
package kubernetes
