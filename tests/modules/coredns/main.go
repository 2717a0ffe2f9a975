// Command coredns is CoreDNS with only the plugins in the lab's Corefile: the plugins of clouds, and their tracing
// libraries, take minutes to build.
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
