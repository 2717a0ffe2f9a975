package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"strings"

	"github.com/flannel-io/flannel/pkg/ip"
)

// previousLease is what the subnet file of an earlier run says: the masquerade rules of that network are to be
// replaced when it differs from today's.
type previousLease struct {
	network     ip.IP4Net
	subnet      ip.IP4Net
	networkIPv6 ip.IP6Net
	subnetIPv6  ip.IP6Net
}

// readPreviousLease reads the subnet file. A file that is not there is a first start, no error.
func readPreviousLease(path string) (previousLease, error) {
	lease := previousLease{
		networkIPv6: ip.IP6Net{IP: (*ip.IP6)(big.NewInt(0))},
		subnetIPv6:  ip.IP6Net{IP: (*ip.IP6)(big.NewInt(0))},
	}
	values, err := readVariables(path)
	if errors.Is(err, fs.ErrNotExist) {
		return lease, nil
	}
	if err != nil {
		return lease, fmt.Errorf("reading the subnet file %s: %w", path, err)
	}
	for key, target := range map[string]*ip.IP4Net{"FLANNEL_NETWORK": &lease.network, "FLANNEL_SUBNET": &lease.subnet} {
		if value := values[key]; value != "" {
			_, parsed, err := net.ParseCIDR(value)
			if err != nil || parsed.IP.To4() == nil {
				return lease, fmt.Errorf("subnet file %s: %s=%q is no IPv4 network", path, key, value)
			}
			*target = ip.FromIPNet(parsed)
		}
	}
	for key, target := range map[string]*ip.IP6Net{"FLANNEL_IPV6_NETWORK": &lease.networkIPv6, "FLANNEL_IPV6_SUBNET": &lease.subnetIPv6} {
		if value := values[key]; value != "" {
			_, parsed, err := net.ParseCIDR(value)
			if err != nil || parsed.IP.To4() != nil {
				return lease, fmt.Errorf("subnet file %s: %s=%q is no IPv6 network", path, key, value)
			}
			*target = ip.FromIP6Net(parsed)
		}
	}
	return lease, nil
}

// readVariables reads lines of the form KEY=value.
func readVariables(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	values := map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if key, value, found := strings.Cut(strings.TrimSpace(lines.Text()), "="); found {
			values[key] = value
		}
	}
	return values, lines.Err()
}
