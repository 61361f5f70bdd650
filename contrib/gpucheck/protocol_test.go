package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/nvidia"
)

// names are the situations in their order.
func names() (out []string) {
	for _, s := range situations {
		out = append(out, s.name)
	}
	return out
}

// Every situation is played on the simulated card and daemon, and shows what these do.
func TestProtocolOnTheSimulatedCard(t *testing.T) {
	daemons(t)
	if os.Getuid() != 0 {
		t.Skip("needs root: two users, mounts")
	}
	t.Parallel()
	r := newRig(t, gpusim.Config{Model: "h200", Driver: "555"})
	out, errs, status := r.run("--law", "0", "--pace", "0.1", "--deadline", "1m")
	if status != 0 {
		t.Fatalf("status %d: %s\n%s", status, out, errs)
	}
	facts, got := map[string]map[string]any{}, []string{}
	for _, res := range r.results() {
		facts[res.Name] = res.Facts
		got = append(got, res.Name)
		if res.Error != "" || res.Facts["events"] == nil {
			t.Errorf("%+v", res)
		}
	}
	must.Equal(t, got, names(), "the situations")
	for _, c := range []struct {
		situation, fact string
		want            any
	}{
		{"machine", "cuda", true},
		{"machine", "simulated", true},
		{"machine", "device files open after NVML was shut down", 0.},
		{"machine", "mib in use by two contexts, as NVML says", 800.},
		{"a client by UUID and by number", "visible", r.state.Device(0).UUID()},
		{"a private /dev/shm", "it is a client of the server", false},
		{"a busy client is killed", "a new client", true},
		{"the server is killed", "a new client", true},
		{"a client faults", "a new client while the others are there", false},
		{"a client faults", "neighbour a", "fails: cuCtxSynchronize: 700 CUDA_ERROR_ILLEGAL_ADDRESS"},
		{"a client faults", "a new client after all have gone", true},
		{"four jobs by the product's hooks", "MPS programs after the last epilog", 0.},
		{"the mode EXCLUSIVE_PROCESS", "a process without MPS computes", false},
		{"two users", "while the first computes, the second does", false},
		{"two users", "once the first has gone, the second does", true},
		{"two users of a -multiuser-server", "while the first computes, the second does", true},
	} {
		if got := facts[c.situation][c.fact]; got != c.want {
			t.Errorf("%s: %s: %v, want %v\n%v", c.situation, c.fact, got, c.want, facts[c.situation]["events"])
		}
	}
	for fact, of := range map[string]string{
		"the neighbour, meanwhile":       "a busy client is stopped for a while",
		"the stopped client, afterwards": "a busy client is stopped for a while",
		"client a":                       "the mode EXCLUSIVE_PROCESS", "client b": "the mode EXCLUSIVE_PROCESS",
	} {
		said, _ := facts[of][fact].(string)
		if !strings.HasPrefix(said, "goes on: ") || !strings.HasSuffix(said, " 0 wrong") {
			t.Errorf("%s: %s: %q", of, fact, said)
		}
	}
	hooks := facts["four jobs by the product's hooks"]
	must.Equal(t, hooks["left after the last epilog"], any([]any{}))
	if clients, _ := hooks["clients of the server"].([]any); len(clients) != 4 {
		t.Errorf("clients of the server: %v", clients)
	}
	card := must.Get(r.state.Device(0).Snapshot())(t)
	must.Equal(t, card.ComputeMode, 0, "the compute mode is put back")
	for _, res := range r.results() {
		for _, e := range res.Facts["events"].([]any) {
			var pid int
			_, after, _ := strings.Cut(e.(string), " server ")
			if n, _ := fmt.Sscanf(after, "%d:", &pid); n == 0 {
				continue
			}
			if left, err := filepath.Glob(fmt.Sprintf("/dev/shm/cuda.shm.*.%x.*", pid)); err != nil || len(left) > 0 {
				t.Errorf("%s: left of server %d: %v", res.Name, pid, left)
			}
		}
	}
	if here := string(must.Get(os.ReadFile("/proc/mounts"))(t)); strings.Contains(here, "none /dev/shm tmpfs") {
		t.Error("the machine's /dev/shm was mounted over")
	}
	limited := facts["a memory limit and a thread percentage"]["memory limited to 2048 MiB by number"].(map[string]any)
	if limited["held_mib"] != 2048. {
		t.Errorf("limited to 2048 MiB: %v", limited)
	}
	logs := string(must.Get(os.ReadFile(filepath.Join(r.dir, "out", "mps-control.log")))(t))
	must.Contain(t, logs, "== states of a server\n", "the daemon's log")
}

// NVIDIA's own control daemons, with a program for their server that does nothing: no client computes, every situation
// says so in its time, and nothing of it stays.
func TestProtocolOnOwnDaemons(t *testing.T) {
	daemons(t)
	if os.Getuid() != 0 {
		t.Skip("needs root: two users, mounts")
	}
	t.Parallel()
	for _, d := range nvidia.Fetched(t) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, gpusim.Config{Model: "h200"})
			programs := filepath.Join(r.dir, "programs")
			must.OK(t, os.Mkdir(programs, 0o755),
				os.WriteFile(filepath.Join(programs, "nvidia-cuda-mps-server"), []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
			r.env = append(r.env, "PATH="+programs+":"+bin+":"+os.Getenv("PATH"))
			_, errs, status := r.run("--law", "0", "--pace", "0.02", "--mps-control", d.Control())
			failed := 0
			var got []string
			for _, res := range r.results() {
				got = append(got, res.Name)
				if res.Error != "" {
					failed++
				}
				// The older ones don't know -multiuser-server, and no client computes beside a server that does nothing.
				unknown := d.Name != "555" && res.Name == "two users of a -multiuser-server"
				if unknown != strings.Contains(res.Error, "-multiuser-server") || !unknown && res.Error != "" &&
					!strings.Contains(res.Error, "compute") {
					t.Errorf("%s: %s", res.Name, res.Error)
				}
				if res.TookS > 40 {
					t.Errorf("%s took %v s", res.Name, res.TookS)
				}
			}
			if status != 1 || failed == 0 {
				t.Errorf("status %d, %d situations failed: %s", status, failed, errs)
			}
			must.Equal(t, got, names(), "the situations")
			events := r.results()[1].Facts["events"]
			must.Contain(t, string(must.Get(json.Marshal(events))(t)), "start_server -uid 0")
		})
	}
}

// Without an MPS control program the rest is still seen, and kernels take turns.
func TestWithoutMPS(t *testing.T) {
	daemons(t)
	t.Parallel()
	r := newRig(t, gpusim.Config{Model: "h200"})
	_, errs, status := r.run("--mps-control", "nosuch", "--kernels", "compute", "--duration", "200ms")
	res := r.results()
	if status != 1 || len(res) != len(situations)+2 || res[0].Error != "" || !strings.Contains(res[1].Error, "no MPS") {
		t.Fatalf("status %d: %s\n%+v", status, errs, res)
	}
	must.Equal(t, res[len(res)-1].Facts["sharing"], "time-slice")
}
