package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// prelude are the words of the scripts below: an application that doesn't end within a test, how many processes of a kind
// to wait for, and an application that says how it ended, and whether with a server.
const prelude = `
long() { exec gpusim run alexnet --duration-scale 1e4 --mem-mib 100 "$@" >/dev/null; }
there() { until [ "$(gpusim smi | grep -c "$1")" = "$2" ]; do sleep 0.01; done; }
brief() { gpusim run alexnet --duration-scale 0.01 "$@" >report; echo "ended with $?$(grep -o ',"mps":true' report)"; }
server() { echo get_server_list | nvidia-cuda-mps-control; }
ended() { for pid; do wait $pid 2>/dev/null; echo "ended with $?"; done; }
`

// A CUDA program, an MPS server and what happens to them are as on a real machine.
func TestPrograms(t *testing.T) {
	bin := t.TempDir()
	must.OK(t, built.Into(bin, "gpusim"))
	for name, c := range map[string]struct {
		cfg          gpusim.Config
		script, want string
	}{
		"memory for one only": {
			script: `
				long --preallocate 0.7 & a=$!
				there own 1
				gpusim run alexnet --preallocate 0.5 >/dev/null || echo "ended with $?"
				kill $a; ended $a`,
			want: "CUDA error: out of memory (cudaErrorMemoryAllocation)\nended with 2\nended with 143\n",
		},
		"a client too many": {
			script: `
				nvidia-cuda-mps-control -d
				long & first=$!
				for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do long & done
				there mps-client 16
				brief 2>/dev/null
				kill -9 $first; ended $first
				until [ "$(echo "get_client_list $(server)" | nvidia-cuda-mps-control | wc -l)" = 15 ]; do sleep 0.01; done
				brief`,
			want: "ended with 3\nended with 137\nended with 0,\"mps\":true\n",
		},
		"a killed server takes its clients along": {
			script: `
				nvidia-cuda-mps-control -d
				long 2>>said & a=$!
				long 2>>said & b=$!
				there mps-client 2
				kill -9 $(server)
				ended $a $b
				uniq -c said
				brief`,
			want: "ended with 4\nended with 4\n      2 CUDA error: unspecified launch failure (cudaErrorLaunchFailure)\n" +
				"ended with 0,\"mps\":true\n",
		},
		"a fault before Volta ends the server": {
			script: faulty, want: "ended with 4\nended with 4\nended with 0,\"mps\":true\nanother server\n",
		},
		"a fault from Volta on": {
			cfg: gpusim.Config{Model: "a100"}, script: faulty, want: "ended with 4\nended with 4\nended with 0,\"mps\":true\n",
		},
		// As Slurm's job_container/tmpfs gives it.
		"a /dev/shm of its own": {
			script: `
				nvidia-cuda-mps-control -d
				unshare --mount sh -c 'mount -t tmpfs shm /dev/shm && exec gpusim run alexnet' >/dev/null 2>&1 || echo "ended with $?"
				brief
				s=$(server)
				kill -9 $s
				until [ -z "$(server)" ]; do sleep 0.01; done
				find /dev/shm -name "cuda.shm.*.$(printf %x $s).*"`,
			want: "ended with 3\nended with 0,\"mps\":true\n",
		},
		// In the middle of what they write, too.
		"processes killed at any moment": {
			script: `
				nvidia-cuda-mps-control -d
				for ms in 01 02 03 04 05 06 07 08 09 10 12 14 16 18 20 25; do
					gpusim run alexnet >/dev/null & a=$!
					gpusim run alexnet >/dev/null & b=$!
					brief & survivor=$!
					sleep 0.0$ms
					kill -9 $a $b
					ended $a $b >/dev/null
					wait $survivor
				done`,
			want: strings.Repeat("ended with 0,\"mps\":true\n", 16),
		},
		"exclusive use": {
			cfg: gpusim.Config{Exclusive: true}, script: `
				nvidia-cuda-mps-control -d
				brief
				CUDA_MPS_PIPE_DIRECTORY=/nowhere brief`,
			want: "ended with 0,\"mps\":true\n" +
				"CUDA error: all CUDA-capable devices are busy or unavailable (cudaErrorDevicesUnavailable)\nended with 1\n",
		},
		"MIG instances": {
			cfg: gpusim.Config{Model: "a100", Instances: []string{"1g.5gb", "3g.20gb"}}, script: `
				for v in 0 MIG-none ''; do CUDA_VISIBLE_DEVICES=$v brief 2>/dev/null; done
				export CUDA_VISIBLE_DEVICES=$SMALL; brief --mem-mib 6000 2>/dev/null
				export CUDA_VISIBLE_DEVICES=$LARGE; brief --mem-mib 6000
				grep -o "\"device\":\"$LARGE\"" report >/dev/null`,
			want: strings.Repeat("ended with 1\n", 3) + "ended with 2\nended with 0\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if os.Getuid() != 0 && strings.Contains(c.script, "unshare") {
				t.Skip("needs root")
			}
			dir := must.Get(os.MkdirTemp("", "gpusim"))(t) // short: it is in a socket's name
			t.Cleanup(func() { os.RemoveAll(dir) })
			c.cfg.Scale = 100
			state := filepath.Join(dir, "state")
			must.OK(t, gpusim.Create(state, c.cfg))
			st := must.Get(gpusim.Open(state))(t)
			defer st.Close()
			cmd := exec.Command("sh", "-uc", prelude+c.script)
			cmd.Dir = dir
			cmd.Env = []string{
				"PATH=" + bin + ":" + os.Getenv("PATH"), "GPUSIM_STATE=" + state, "CUDA_MPS_PIPE_DIRECTORY=" + dir + "/pipe",
				"CUDA_MPS_LOG_DIRECTORY=" + dir + "/log",
			}
			if in := st.Device(0).Instances(); len(in) > 0 {
				cmd.Env = append(cmd.Env, "SMALL="+in[0].UUID, "LARGE="+in[1].UUID)
			}
			out := must.Get(os.Create(filepath.Join(dir, "out")))(t)
			defer out.Close()
			cmd.Stdout, cmd.Stderr = out, out
			must.OK(t, cmd.Run())
			if diff := cmp.Diff(c.want, string(must.Get(os.ReadFile(out.Name()))(t))); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			none(t, st, cmd.Env)
		})
	}
}

const faulty = `
				nvidia-cuda-mps-control -d
				long 2>/dev/null & a=$!
				there mps-client 1
				was=$(server)
				long --fault-at 5 2>/dev/null & b=$!
				ended $a $b
				brief
				[ "$(server)" = $was ] || echo another server`

// none ends what computes and the daemon; nothing of them stays on the GPU.
func none(t *testing.T, st *gpusim.State, env []string) {
	t.Helper()
	quit := exec.Command("sh", "-c", "echo quit -t 0.01 | nvidia-cuda-mps-control")
	quit.Env = env
	_ = quit.Run() // there may be none
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s := must.Get(st.Device(0).Snapshot())(t)
		if len(s.Processes) == 0 && s.MemMiB <= 1 {
			return
		}
		for _, p := range s.Processes {
			if proc, err := os.FindProcess(p.PID); err == nil {
				_ = proc.Kill()
			}
		}
		if time.Now().After(end) {
			t.Fatalf("left on the GPU: %+v", s.Processes)
		}
	}
}
