package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestManifestArguments(t *testing.T) {
	o, err := parseOptions([]string{"--ip-masq", "--kube-subnet-mgr", "--iface=eth0", "--iface=eth1"},
		[]string{"FLANNELD_IP_MASQ=false", "FLANNELD_HEALTHZ_PORT=8081", "OTHER=1"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !o.masquerade || len(o.interfaces) != 2 || o.healthzPort != 8081 {
		t.Fatalf("flags win over the environment, which sets the rest: %+v", o)
	}
}

func TestRefused(t *testing.T) {
	for name, arguments := range map[string][]string{
		"unknown flag":   {"--kube-subnet-mgr", "--etcd-endpoints=http://127.0.0.1:2379"},
		"no manager":     {"--ip-masq"},
		"argument":       {"--kube-subnet-mgr", "eth0"},
		"resync of zero": {"--kube-subnet-mgr", "--iptables-resync=0"},
	} {
		if _, err := parseOptions(arguments, nil, io.Discard); err == nil {
			t.Errorf("%s: %v was accepted", name, arguments)
		}
	}
	if _, err := parseOptions([]string{"--kube-subnet-mgr"}, []string{"FLANNELD_IP_MASQ=perhaps"}, io.Discard); err == nil {
		t.Error("FLANNELD_IP_MASQ=perhaps was accepted")
	}
}

func TestPreviousLease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	if lease, err := readPreviousLease(path); err != nil || !lease.network.Empty() {
		t.Fatalf("no file: %+v, %v", lease, err)
	}
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.2.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	lease, err := readPreviousLease(path)
	if err != nil || lease.network.String() != "10.244.0.0/16" || lease.subnet.String() != "10.244.2.0/24" {
		t.Fatalf("%+v, %v", lease, err)
	}
	write("FLANNEL_NETWORK=ten\n")
	if _, err := readPreviousLease(path); err == nil {
		t.Error("FLANNEL_NETWORK=ten was accepted")
	}
}
