// Package cni pins the flannel CNI plugin that the lab runs. It holds no code.
package cni
