package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkHook measures each hook's p50 and p99, ms, as Slurm sees them: with no MPS
// daemon to start, with one (the first sharer of a GPU, and the last), and with one
// that is there. MPS is the simulated one.
func BenchmarkHook(b *testing.B) {
	bin := b.TempDir()
	build := exec.Command("go", "build", "-o", bin+"/", ".", "../../../contrib/testbed/gpusim/cmd/gpusim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	run, err := os.MkdirTemp("", "sbf") // sockets need a short path, and users' servers one they reach
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(run) })
	control, state := filepath.Join(bin, "nvidia-cuda-mps-control"), filepath.Join(run, "state")
	settings := filepath.Join(run, "node.yaml")
	for _, err := range []error{
		os.Chmod(run, 0o755), os.Symlink("gpusim", control), os.Symlink("gpusim", filepath.Join(bin, "nvidia-cuda-mps-server")),
		os.WriteFile(settings, fmt.Appendf(nil, "run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n", run, control, state), 0o600),
		exec.Command(filepath.Join(bin, "gpusim"), "init", "--state", state).Run(),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	call := func(kind, id, share string) time.Duration {
		cmd := exec.Command(filepath.Join(bin, "slurmbridge-hook"), kind, "--settings", settings)
		cmd.Env = job("SLURM_JOB_ID="+id, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+share)
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) > 0 {
			b.Fatalf("%s: %v: %s", kind, err, out)
		}
		return time.Since(start)
	}
	for _, c := range []struct{ name, share, beside string }{
		{"whole", "", ""}, {"alone", "50", ""}, {"beside", "50", "8"},
	} {
		b.Run(c.name, func(b *testing.B) {
			if c.beside != "" {
				call("prolog", c.beside, c.share)
				defer call("epilog", c.beside, c.share)
			}
			took := map[string][]time.Duration{}
			for range b.N {
				for _, kind := range []string{"prolog", "epilog"} {
					took[kind] = append(took[kind], call(kind, "7", c.share))
				}
			}
			for kind, all := range took {
				slices.Sort(all)
				for _, q := range []int{50, 99} {
					b.ReportMetric(all[min(len(all)-1, len(all)*q/100)].Seconds()*1e3, fmt.Sprintf("%s-p%d-ms", kind, q))
				}
			}
		})
	}
	if left, _ := filepath.Glob(filepath.Join(run, "mps/*/pipe")); len(left) > 0 {
		b.Errorf("left: %s", strings.Join(left, " "))
	}
}
