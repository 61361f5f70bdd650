package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// node is a run folder with the simulated GPU's MPS, in which hooks run.
type hookNode struct {
	*testing.T
	run string
}

// newHookNode makes one; bin holds gpusim by its two names.
func newHookNode(t *testing.T, bin string) *hookNode {
	t.Helper()
	run := must.Get(os.MkdirTemp("", "sbd"))(t) // sockets need a short path, and users one they reach
	n := &hookNode{t, run}
	t.Cleanup(func() { os.RemoveAll(run) })
	must.OK(t,
		os.Chmod(run, 0o755),
		exec.Command(filepath.Join(bin, "gpusim"), "init", "--state", n.in("state"), "--model", "v100", "--scale", "20").Run(),
		os.WriteFile(n.in("node.yaml"), fmt.Appendf(nil, "run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n",
			n.in("run"), filepath.Join(bin, "nvidia-cuda-mps-control"), n.in("state")), 0o644),
		os.Mkdir(n.in("run"), 0o755),
		prolog.Dir(n.in("run")).WriteCards([]prolog.Card{{MemLimits: true, MemMiB: 16160}}))
	return n
}

func (n *hookNode) in(name string) string { return filepath.Join(n.run, name) }

// call runs a hook of a job; whatever it finds, it ends well and says little.
func (n *hookNode) call(kind string, id int) string {
	n.Helper()
	r := hook(n.T, []string{kind, "--settings", n.in("node.yaml"), "--deadline", "1m"},
		job(fmt.Sprintf("SLURM_JOB_ID=%d", id))...)
	if r.status != 0 || strings.Count(r.stderr, "\n") > 5 || len(r.stderr) > 1500 {
		n.Errorf("%s of job %d: exit %d, says %q", kind, id, r.status, r.stderr)
	}
	for line := range strings.Lines(r.out) {
		if kind != "taskprolog" || !strings.HasPrefix(line, "export ") && !strings.HasPrefix(line, "unset ") {
			n.Errorf("%s of job %d prints %q", kind, id, line)
		}
	}
	return r.out
}

// job runs the hooks of a job and reports whether it computed through MPS.
func (n *hookNode) job(id int) bool {
	n.call("prolog", id)
	defer n.call("epilog", id)
	return strings.Contains(n.call("taskprolog", id), "CUDA_MPS_PIPE_DIRECTORY=")
}

// files are those that the hooks keep.
func (n *hookNode) files() []string {
	var out []string
	_ = filepath.WalkDir(n.in("run"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && !strings.HasSuffix(path, ".log") {
			rel, _ := filepath.Rel(n.in("run"), path)
			out = append(out, rel)
		}
		return nil
	})
	return out
}

// daemons are the MPS daemons and servers of this node.
func (n *hookNode) daemons() (out []string) {
	proc, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range proc {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte("GPUSIM_STATE="+n.in("state"))) {
			out = append(out, path)
		}
	}
	return out
}

// healed checks that nothing is left of the jobs before, and that the next one has all it should.
func (n *hookNode) healed(what string) {
	n.Helper()
	if !n.job(9) {
		n.Errorf("%s: the next job computes without MPS", what)
	}
	must.Equal(n, must.Get(filepath.Glob(n.in("run/jobs/*")))(n), nil, "%s: jobs that are over", what)
	must.Equal(n, n.daemons(), nil, "%s: daemons that are left", what)
}

func buildGPUSim(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: jobs of other users")
	}
	bin := t.TempDir()
	// The MPS server is the job's user's, who must get to its program.
	must.OK(t, built.Into(bin, "gpusim"), os.Chmod(bin, 0o755), os.Chmod(filepath.Dir(bin), 0o755))
	return bin
}

// Each file that hooks keep is damaged while a job runs: hooks end well, and once the jobs that
// it concerned are over, it is as if nothing had been.
func TestHooksOnDamagedFiles(t *testing.T) {
	bin := buildGPUSim(t)
	damages := map[string]func(path string, text []byte) error{
		"cut":      func(path string, text []byte) error { return os.Truncate(path, int64(len(text)/2)) },
		"a folder": func(path string, _ []byte) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
		"gone":     func(path string, _ []byte) error { return os.Remove(path) },
		"noise": func(path string, text []byte) error {
			rnd := rand.New(rand.NewPCG(1, uint64(len(text))))
			for i := range text {
				text[i] = byte(rnd.Uint32())
			}
			return os.WriteFile(path, text, 0)
		},
	}
	first := newHookNode(t, bin)
	first.call("prolog", 7)
	files := first.files()
	first.call("epilog", 7)
	if len(files) < 4 {
		t.Fatalf("hooks keep %v", files)
	}
	t.Log(files)
	names := slices.Sorted(maps.Keys(damages))
	for i, file := range files {
		for j, name := range names {
			if (i+j)%2 == 1 && os.Getenv("SLURMBRIDGE_SLOW") == "" {
				continue // each file has half of the damages, each damage half of the files
			}
			damage := damages[name]
			t.Run(name+" "+file, func(t *testing.T) {
				t.Parallel()
				n := newHookNode(t, bin)
				n.call("prolog", 7)
				path := n.in("run/" + file)
				must.OK(t, damage(path, must.Get(os.ReadFile(path))(t)))
				n.job(8)
				n.call("taskprolog", 7)
				n.call("epilog", 7)
				n.healed("afterwards")
			})
		}
	}
}

// On a disk that is full hooks end well, jobs compute, and once there is space it is as if nothing had been.
func TestHooksOnAFullDisk(t *testing.T) {
	bin := buildGPUSim(t)
	if !must.OwnMounts(t) {
		return
	}
	n := newHookNode(t, bin)
	err := syscall.Mount("none", n.in("run"), "tmpfs", 0, "size=256k,mode=755")
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	must.OK(t, err)
	defer func() { _ = syscall.Unmount(n.in("run"), syscall.MNT_DETACH) }()
	must.OK(t, prolog.Dir(n.in("run")).WriteCards([]prolog.Card{{MemLimits: true, MemMiB: 16160}}))
	fill := func() {
		t.Helper()
		f := must.Get(os.Create(n.in("run/ballast")))(t)
		for size := 4096; size > 0; {
			if _, err := f.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
		must.OK(t, f.Close())
	}
	for _, when := range []string{"before", "while"} {
		if when == "before" {
			fill()
		}
		n.call("prolog", 7)
		if when == "while" {
			fill()
		}
		n.job(8)
		n.call("taskprolog", 7)
		n.call("epilog", 7)
		must.OK(t, os.Remove(n.in("run/ballast")))
		n.healed("full " + when + " jobs ran")
	}
}
