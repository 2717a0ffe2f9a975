// Command flanneld is the flannel daemon of the lab: flannel's own packages with a small main, because upstream's main
// imports a cloud backend whose module is not to be had. It knows the Kubernetes subnet manager and the backends vxlan
// and host-gw, and takes the flags of upstream's manifest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw" // registers itself
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"  // registers itself
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
	"k8s.io/klog/v2"
)

const flannelModule = "github.com/flannel-io/flannel"

func main() {
	o, err := optionsFromProcess()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "flanneld: %v\n", err)
		os.Exit(2)
	case o.version:
		fmt.Fprintln(os.Stderr, version())
		return
	}
	klog.Infof("flanneld %s with %+v", version(), o)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		klog.Errorf("flanneld ends: %v", err)
		klog.Flush()
		os.Exit(1)
	}
	klog.Info("Exiting cleanly...")
}

// version is that of the flannel packages that this binary was built from.
func version() string {
	if information, found := debug.ReadBuildInfo(); found {
		for _, module := range information.Deps {
			if module.Path == flannelModule {
				return module.Version
			}
		}
	}
	return "unknown"
}

// run brings the node into the pod network and keeps it there until the context ends. It leaves device, routes and
// rules behind, as flannel does: pods go on talking while flanneld restarts.
func run(parent context.Context, o options) error {
	ctx, cancel := context.WithCancel(parent)
	var tasks sync.WaitGroup
	// Everything started here ends with the context; nobody returns before it has.
	defer tasks.Wait()
	defer cancel()

	manager, err := newSubnetManager(ctx, o)
	if err != nil {
		return err
	}
	if o.healthzPort > 0 {
		if err := serveHealth(ctx, &tasks, net.JoinHostPort(o.healthzIP, strconv.Itoa(o.healthzPort))); err != nil {
			return err
		}
	}
	configuration, err := networkConfiguration(ctx, manager)
	if err != nil {
		return ignoreEnd(parent, err)
	}
	if err := requireBridgeFilter(configuration); err != nil {
		return err
	}
	external, err := externalInterface(ctx, manager, configuration, o)
	if err != nil {
		return err
	}
	chosen, err := backend.NewManager(ctx, manager, external).GetBackend(configuration.BackendType)
	if err != nil {
		return fmt.Errorf("backend %q of the network configuration: %w (built in: vxlan, host-gw)", configuration.BackendType, err)
	}
	network, err := chosen.RegisterNetwork(ctx, &tasks, configuration)
	if err != nil {
		return ignoreEnd(parent, fmt.Errorf("registering this node with backend %q: %w", configuration.BackendType, err))
	}
	if err := setUpRules(ctx, configuration, network.Lease(), o); err != nil {
		return ignoreEnd(parent, err)
	}
	if o.blackholeRoute {
		keepBlackhole(ctx, &tasks, configuration, network.Lease(), o.resyncSeconds)
	}
	owned := network.Lease()
	if err := manager.HandleSubnetFile(o.subnetFile, configuration, o.masquerade, owned.Subnet, owned.IPv6Subnet, network.MTU()); err != nil {
		// Pods cannot start without the file, those that run can: the network is worth more than the file.
		klog.Errorf("writing the subnet file %s: %v", o.subnetFile, err)
	} else {
		klog.Infof("Wrote subnet file to %s", o.subnetFile)
	}

	tasks.Add(1)
	go func() {
		defer tasks.Done()
		klog.Info("Running backend.")
		network.Run(ctx)
	}()
	if err := manager.CompleteLease(ctx, owned, &tasks); err != nil {
		return ignoreEnd(parent, fmt.Errorf("marking the network of this node as available: %w", err))
	}
	<-ctx.Done()
	return nil
}

// ignoreEnd turns an error that only says that we were asked to end into none.
func ignoreEnd(parent context.Context, err error) error {
	if parent.Err() != nil {
		return nil
	}
	return err
}

func newSubnetManager(ctx context.Context, o options) (subnet.Manager, error) {
	manager, err := kube.NewSubnetManager(ctx, o.kubeAPIURL, o.kubeConfigFile, o.kubeAnnotationPrefix, o.networkConfigPath, o.setNodeNetworkUnavailable)
	if err == nil {
		return manager, nil
	}
	// Upstream's switch for clusters so big that the first list of nodes takes longer than its patience.
	if manager != nil && errors.Is(err, context.DeadlineExceeded) && os.Getenv("CONT_WHEN_CACHE_NOT_READY") == "true" {
		klog.Warningf("going on without the list of nodes: %v", err)
		return manager, nil
	}
	return nil, fmt.Errorf("creating the Kubernetes subnet manager: %w", err)
}

func networkConfiguration(ctx context.Context, manager subnet.Manager) (*subnet.Config, error) {
	for {
		configuration, err := manager.GetNetworkConfig(ctx)
		if err == nil && configuration != nil {
			klog.Infof("Found network config - Backend type: %s", configuration.BackendType)
			return configuration, nil
		}
		klog.Errorf("reading the network configuration: %v", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// requireBridgeFilter refuses to run where iptables would not see what crosses the bridge: services would fail for
// pods of one node, and nothing would say why.
func requireBridgeFilter(configuration *subnet.Config) error {
	if configuration.EnableNFTables {
		return nil
	}
	needed := map[string]bool{"iptables": configuration.EnableIPv4, "ip6tables": configuration.EnableIPv6}
	for family, enabled := range needed {
		path := "/proc/sys/net/bridge/bridge-nf-call-" + family
		if _, err := os.Stat(path); enabled && err != nil {
			return fmt.Errorf("looking at %s: %w; load the module br_netfilter, or set EnableNFTables", path, err)
		}
	}
	return nil
}

// externalInterface finds the interface between hosts: by what the node's annotations say of its public address, else
// by the flags, in their order, else by the default route.
func externalInterface(ctx context.Context, manager subnet.Manager, configuration *subnet.Config, o options) (*backend.ExternalInterface, error) {
	stack, err := ipmatch.GetIPFamily(configuration.EnableIPv4, configuration.EnableIPv6)
	if err != nil {
		return nil, fmt.Errorf("address families of the network configuration: %w", err)
	}
	public := ipmatch.PublicIPOpts{PublicIP: o.publicIPv4, PublicIPv6: o.publicIPv6}
	if v4, v6 := manager.GetStoredPublicIP(ctx); v4 != "" || v6 != "" {
		if v4 != "" {
			public.PublicIP = v4
		}
		if v6 != "" {
			public.PublicIPv6 = v6
		}
	}
	type attempt struct{ name, pattern, reach string }
	var attempts []attempt
	for _, name := range o.interfaces {
		attempts = append(attempts, attempt{name: name})
	}
	for _, pattern := range o.interfacePatterns {
		attempts = append(attempts, attempt{pattern: pattern})
	}
	if o.interfaceCanReach != "" {
		attempts = append(attempts, attempt{reach: o.interfaceCanReach})
	}
	if len(attempts) == 0 {
		name := public.PublicIP
		if name == "" {
			name = public.PublicIPv6
		}
		attempts = append(attempts, attempt{name: name})
	}
	var problems []error
	for _, a := range attempts {
		found, err := ipmatch.LookupExtIface(a.name, a.pattern, a.reach, stack, public)
		if err == nil && found != nil {
			return found, nil
		}
		problems = append(problems, fmt.Errorf("interface %q, pattern %q, reaching %q: %w", a.name, a.pattern, a.reach, err))
	}
	return nil, fmt.Errorf("no interface between hosts found: %w", errors.Join(problems...))
}

// setUpRules clears the rules of the traffic manager that is not in use (a cluster may have changed its mind) and
// sets up those of the one that is.
func setUpRules(ctx context.Context, configuration *subnet.Config, owned *lease.Lease, o options) error {
	var used, unused trafficmngr.TrafficManager = &iptables.IPTablesManager{}, &nftables.NFTablesManager{}
	if configuration.EnableNFTables {
		used, unused = unused, used
	}
	if err := unused.CleanUp(ctx); err != nil {
		return fmt.Errorf("clearing rules of the other traffic manager: %w", err)
	}
	if err := used.Init(ctx); err != nil {
		return fmt.Errorf("initialising the traffic manager: %w", err)
	}
	if o.masquerade {
		previous, err := readPreviousLease(o.subnetFile)
		if err != nil {
			// Upstream goes on as after a first start, too: stale rules are better than no network.
			klog.Errorf("taking the previous lease as unknown: %v", err)
		}
		if err := used.SetupAndEnsureMasqRules(ctx,
			configuration.Network, previous.subnet, previous.network,
			configuration.IPv6Network, previous.subnetIPv6, previous.networkIPv6,
			owned, o.resyncSeconds, o.masqueradeNotFullyRandom); err != nil {
			return fmt.Errorf("setting up masquerade rules: %w", err)
		}
	}
	if o.forwardRules {
		used.SetupAndEnsureForwardRules(ctx, configuration.Network, configuration.IPv6Network, o.resyncSeconds)
	}
	return nil
}

// keepBlackhole holds a blackhole route for this node's own subnet, for set-ups without the bridge plugin.
func keepBlackhole(ctx context.Context, tasks *sync.WaitGroup, configuration *subnet.Config, owned *lease.Lease, seconds int) {
	tasks.Add(1)
	go func() {
		defer tasks.Done()
		ticker := time.NewTicker(time.Duration(seconds) * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if configuration.EnableIPv4 {
				if err := ip.AddBlackholeV4Route(owned.Subnet.ToIPNet()); err != nil {
					klog.Errorf("blackhole route for %s: %v", owned.Subnet, err)
				}
			}
			if configuration.EnableIPv6 {
				if err := ip.AddBlackholeV6Route(owned.IPv6Subnet.ToIPNet()); err != nil {
					klog.Errorf("blackhole route for %s: %v", owned.IPv6Subnet, err)
				}
			}
		}
	}()
}

// serveHealth answers /healthz until the context ends. The port is taken before this returns, so that a clash is an
// error at the start.
func serveHealth(ctx context.Context, tasks *sync.WaitGroup, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("health endpoint on %s: %w", address, err)
	}
	routes := http.NewServeMux()
	routes.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "flanneld is running")
	})
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	tasks.Add(2)
	go func() {
		defer tasks.Done()
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.Errorf("health endpoint on %s: %v", address, err)
		}
	}()
	go func() {
		defer tasks.Done()
		<-ctx.Done()
		server.Close()
	}()
	return nil
}
