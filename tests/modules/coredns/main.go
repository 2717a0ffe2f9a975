// Command coredns is CoreDNS with the plugins that the lab's Corefile names, and no others: those of the clouds, and what
// they trace by, take minutes to build.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"       // registers itself
	_ "github.com/coredns/coredns/plugin/errors"      // registers itself
	_ "github.com/coredns/coredns/plugin/health"      // registers itself
	_ "github.com/coredns/coredns/plugin/kubernetes"  // registers itself
	_ "github.com/coredns/coredns/plugin/loadbalance" // registers itself
	_ "github.com/coredns/coredns/plugin/metrics"     // registers itself
	_ "github.com/coredns/coredns/plugin/ready"       // registers itself
)

func main() {
	coremain.Run()
}
