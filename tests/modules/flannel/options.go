package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/klog/v2"
)

// environmentPrefix is what an environment variable that sets a flag begins with: FLANNELD_IP_MASQ sets --ip-masq.
const environmentPrefix = "FLANNELD_"

// repeated is a flag that may be given more than once.
type repeated []string

func (r *repeated) String() string { return strings.Join(*r, ",") }

func (r *repeated) Set(value string) error {
	*r = append(*r, value)
	return nil
}

// options holds what the command line and the environment say. The names are those of upstream's flanneld, so that
// the arguments of a real manifest work here; flags of parts that are not built in (etcd) do not exist and are refused.
type options struct {
	interfaces                repeated
	interfacePatterns         repeated
	interfaceCanReach         string
	publicIPv4                string
	publicIPv6                string
	kubeSubnetManager         bool
	kubeAPIURL                string
	kubeConfigFile            string
	kubeAnnotationPrefix      string
	networkConfigPath         string
	subnetFile                string
	setNodeNetworkUnavailable bool
	masquerade                bool
	masqueradeNotFullyRandom  bool
	forwardRules              bool
	blackholeRoute            bool
	resyncSeconds             int
	healthzIP                 string
	healthzPort               int
	version                   bool
}

// parseOptions reads flags from arguments, then from the environment those that the arguments did not set.
func parseOptions(arguments []string, environment []string, output io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("flanneld", flag.ContinueOnError)
	flags.SetOutput(output)
	flags.Var(&o.interfaces, "iface", "interface (name or address) between hosts; the first that exists is taken")
	flags.Var(&o.interfacePatterns, "iface-regex", "regular expression for the interface; looked at after --iface")
	flags.StringVar(&o.interfaceCanReach, "iface-can-reach", "", "take the interface that the route to this address uses")
	flags.StringVar(&o.publicIPv4, "public-ip", "", "IPv4 address that other nodes reach this node by")
	flags.StringVar(&o.publicIPv6, "public-ipv6", "", "IPv6 address that other nodes reach this node by")
	flags.BoolVar(&o.kubeSubnetManager, "kube-subnet-mgr", false, "take subnets from the Kubernetes API (the only way built in)")
	flags.StringVar(&o.kubeAPIURL, "kube-api-url", "", "URL of the API server; not needed in a pod")
	flags.StringVar(&o.kubeConfigFile, "kubeconfig-file", "", "kubeconfig file; not needed in a pod")
	flags.StringVar(&o.kubeAnnotationPrefix, "kube-annotation-prefix", "flannel.alpha.coreos.com", "prefix of the node annotations")
	flags.StringVar(&o.networkConfigPath, "net-config-path", "/etc/kube-flannel/net-conf.json", "network configuration file")
	flags.StringVar(&o.subnetFile, "subnet-file", "/run/flannel/subnet.env", "file that the CNI plugin reads")
	flags.BoolVar(&o.setNodeNetworkUnavailable, "set-node-network-unavailable", true, "set NetworkUnavailable=False when ready")
	flags.BoolVar(&o.masquerade, "ip-masq", false, "masquerade what leaves the pod network")
	flags.BoolVar(&o.masqueradeNotFullyRandom, "ip-masq-fully-random-disable", false, "masquerade without --random-fully")
	flags.BoolVar(&o.forwardRules, "iptables-forward-rules", true, "accept forwarding to and from the pod network")
	flags.BoolVar(&o.blackholeRoute, "ip-blackhole-route", false, "add a blackhole route for this node's subnet")
	flags.IntVar(&o.resyncSeconds, "iptables-resync", 5, "seconds between two looks at the rules")
	flags.StringVar(&o.healthzIP, "healthz-ip", "0.0.0.0", "address of the health endpoint")
	flags.IntVar(&o.healthzPort, "healthz-port", 0, "port of the health endpoint; 0 for none")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	addLogFlags(flags)

	if err := flags.Parse(arguments); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q: flanneld takes flags only", flags.Arg(0))
	}
	if err := setFromEnvironment(flags, environment); err != nil {
		return options{}, err
	}
	return o, o.validate()
}

// validate refuses what cannot work before anything is touched.
func (o options) validate() error {
	switch {
	case o.version:
		return nil
	case !o.kubeSubnetManager:
		return errors.New("--kube-subnet-mgr is not set: this flanneld has no etcd subnet manager")
	case o.resyncSeconds <= 0:
		return fmt.Errorf("--iptables-resync is %d: it must be at least 1 second", o.resyncSeconds)
	case o.healthzPort < 0 || o.healthzPort > 65535:
		return fmt.Errorf("--healthz-port is %d: it must lie between 0 and 65535", o.healthzPort)
	}
	return nil
}

// addLogFlags offers klog's verbosity, which upstream's manifests use, and sends everything to standard error.
func addLogFlags(flags *flag.FlagSet) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	klog.LogToStderr(true)
	for _, name := range []string{"v", "vmodule", "log_backtrace_at"} {
		known := all.Lookup(name)
		flags.Var(known.Value, known.Name, known.Usage)
	}
}

// setFromEnvironment gives each flag that the command line left alone the value of its variable, if there is one.
func setFromEnvironment(flags *flag.FlagSet, environment []string) error {
	values := map[string]string{}
	for _, entry := range environment {
		if name, value, found := strings.Cut(entry, "="); found && strings.HasPrefix(name, environmentPrefix) {
			values[name] = value
		}
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var problems []error
	flags.VisitAll(func(f *flag.Flag) {
		name := environmentPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, found := values[name]
		if !found || given[f.Name] {
			return
		}
		if err := f.Value.Set(value); err != nil {
			problems = append(problems, fmt.Errorf("%s=%q is no value for --%s: %w", name, value, f.Name, err))
		}
	})
	return errors.Join(problems...)
}

func optionsFromProcess() (options, error) {
	return parseOptions(os.Args[1:], os.Environ(), os.Stderr)
}
