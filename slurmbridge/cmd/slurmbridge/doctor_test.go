package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

func TestDaemonAddress(t *testing.T) {
	plain, secure := filepath.Join(t.TempDir(), "plain.yml"), filepath.Join(t.TempDir(), "tls.yml")
	for file, text := range map[string]string{plain: "basic_auth_users: {}\n", secure: "tls_server_config:\n  cert_file: x\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ listen, web, server, want string }{
		{":9797", "", "", "http://localhost:9797"},
		{"10.0.0.1:80", plain, "", "http://10.0.0.1:80"},
		{"[::]:9797", secure, "", "https://localhost:9797"},
		{"", "", "", ""},
		{"", "", "https://head:1", "https://head:1"},
	} {
		if got := daemonAddress(&config.Config{Listen: c.listen, WebConfig: c.web}, c.server); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestDoctorFlags(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"squeue", "sbatch", "scontrol", "scancel"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SLURMBRIDGE_BIN_DIR", bin)
	for says, args := range map[string][]string{
		"{node}":          {"--agents", "http://gpu1:9798"},
		"--client-config": {"--client-config", "/nowhere/client.yml"},
	} {
		status, out, errOut := call(append([]string{"doctor", "-c", conf(t)}, args...)...)
		if status != 2 || out != "" || !strings.Contains(errOut, says) {
			t.Errorf("%v: %d %q %q", args, status, out, errOut)
		}
	}
}

// On a real Slurm: what a daemon and its absence, agents that nobody answers for, a
// short memory of jobs and a node that came with less than promised look like.
func TestDoctorLive(t *testing.T) {
	l := newLive(t)
	findings := func(args ...string) map[string]string {
		t.Helper()
		status, out, errOut := l.as("slurm", append([]string{"doctor", "--json"}, args...)...)
		var r struct {
			Findings []struct{ Check, Severity string }
			Exit     int
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil || status != r.Exit {
			t.Fatalf("doctor: %d %v %s%s", status, err, out, errOut)
		}
		found := map[string]string{}
		for _, f := range r.Findings {
			found[f.Check] = f.Severity
		}
		return found
	}
	lacks := func(found map[string]string, names ...string) {
		t.Helper()
		for _, name := range names {
			if found[name] != "" {
				t.Errorf("%s: %s", found[name], name)
			}
		}
	}
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(quiet.Addr().String())
	quiet.Close()
	found := findings("--agents", "http://{node}:"+port)
	for check, severity := range map[string]string{"daemon": "warning", "agent": "warning", "hook-prolog": "error"} {
		if found[check] != severity {
			t.Errorf("%s is %q, not %s: %v", check, found[check], severity, found)
		}
	}
	lacks(found, "munge", "gres-types", "gres-conf", "node-invalid", "lua", "lua-gate-file", "gate-partition", "gate-rights", "min-job-age", "default-memory")

	l.serve()
	found = findings("--agents", "")
	lacks(found, "daemon", "daemon-look", "daemon-mode", "gate", "policy", "agent", "mps-unseen")

	// The partition drains and the memory gets short.
	text, err := os.ReadFile(l.Conf())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Conf(), append(text, "MinJobAge=5\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"reconfigure"}, {"update", "PartitionName=" + slurmtest.Partition, "State=DRAIN"}} {
		if out, err := l.Run(t.Context(), "scontrol", args...); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	want := []string{"min-job-age", "gate-partition"}
	if !slurmtest.Wait(t.Context(), 20*time.Second, func() bool {
		found = findings("--agents", "")
		return !slices.ContainsFunc(want, func(check string) bool { return found[check] == "" })
	}) {
		t.Errorf("%v", found)
	}
}
