// Package coredns pins the DNS server that the lab runs. It holds no code.
package coredns
