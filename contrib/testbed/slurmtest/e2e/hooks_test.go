package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

const etc = "../../../../etc"

// installHooks returns what installs etc/hooks in a cluster, with the program they
// call and a simulated GPU's MPS. Each hook writes down how long it took, in
// nanoseconds, in log/NAME.ns.
func installHooks(t *testing.T) func(c *slurmtest.Cluster) error {
	t.Helper()
	bare := bareHooks(t)
	return func(c *slurmtest.Cluster) error {
		if err := bare(c); err != nil {
			return err
		}
		var errs []error
		for name, path := range map[string]*string{"prolog": &c.Options.Prolog, "epilog": &c.Options.Epilog, "epilog-slurmctld": &c.Options.EpilogSlurmctld} {
			outer := fmt.Sprintf("#!/bin/sh\na=$(date +%%s%%N)\n%s\nrc=$?\necho $(($(date +%%s%%N) - a)) >>%s.ns\nexit $rc\n", *path, c.Path("log", name))
			*path += "-timed"
			errs = append(errs, os.WriteFile(*path, []byte(outer), 0o755))
		}
		return errors.Join(errs...)
	}
}

// bareHooks is installHooks for hooks that cost no more than a site's.
func bareHooks(t *testing.T) func(c *slurmtest.Cluster) error {
	t.Helper()
	return func(c *slurmtest.Cluster) error {
		bin := c.Path("bin")
		if err := built.Into(bin, "slurmbridge-hook", "gpusim"); err != nil {
			return err
		}
		state, control := c.Path("gpusim.state"), filepath.Join(bin, "nvidia-cuda-mps-control")
		if out, err := exec.Command(filepath.Join(bin, "gpusim"), "init", "--state", state).CombinedOutput(); err != nil {
			return fmt.Errorf("gpusim init: %w: %s", err, out)
		}
		node := fmt.Sprintf("run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n", c.Path("node"), control, state)
		err := os.WriteFile(c.Path("node.yaml"), []byte(node), 0o644)
		for name, path := range map[string]*string{
			"prolog": &c.Options.Prolog, "epilog": &c.Options.Epilog,
			"taskprolog": &c.Options.TaskProlog, "epilog-slurmctld": &c.Options.EpilogSlurmctld,
		} {
			text, rerr := os.ReadFile(filepath.Join(etc, "hooks", name))
			*path = filepath.Join(bin, name)
			err = errors.Join(err, rerr, os.WriteFile(*path, []byte(strings.NewReplacer(
				"/usr/sbin/slurmbridge-hook", filepath.Join(bin, "slurmbridge-hook")+" --settings "+c.Path("node.yaml"),
				"/run/slurmbridge/wake", c.WakeFile,
				"/run/slurmbridge/jobs", c.Path("node", "jobs"),
			).Replace(string(text))), 0o755))
		}
		return err
	}
}

// took returns how long a hook took, each time; nil where it hasn't run.
func (r *rig) took(hook string) (out []time.Duration) {
	r.t.Helper()
	text, err := os.ReadFile(r.Path("log", hook+".ns"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for _, w := range strings.Fields(string(text)) {
		ns := must.Get(strconv.ParseInt(w, 10, 64))(r.t)
		out = append(out, time.Duration(ns))
	}
	return out
}

// settings reads a fragment of slurm.conf: NAME=value lines, without comments.
func settings(t *testing.T, file string) (lines []string) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(etc, file)))(t)
	for line := range strings.Lines(string(text)) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// The files of etc, as a site would install them, are all a cluster needs: jobs
// share a GPU, its MPS daemon is there for them and gone afterwards.
func TestFilesOfEtc(t *testing.T) {
	t.Parallel()
	o := options{}
	o.Prepare = installHooks(t)
	for _, line := range settings(t, "slurm.conf.slurmbridge") {
		switch name, value, _ := strings.Cut(line, "="); name {
		case "SchedulerParameters":
			o.Scheduler = value
		case "Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld", // with the cluster's paths
			"GresTypes", "SelectType", "SelectTypeParameters", "DefMemPerCPU", "JobSubmitPlugins", "NodeName": // slurmtest's own
		default:
			o.Extra = append(o.Extra, line)
		}
	}
	r := newRig(t, o)
	script := fmt.Sprintf("env >%[1]s/$SLURM_JOB_ID.env\nls -a $CUDA_MPS_PIPE_DIRECTORY >%[1]s/$SLURM_JOB_ID.pipe\nsleep 2\n", r.Path("out"))
	var ids []string
	r.unseen(func() {
		for range 2 {
			id, err := r.Submit(t.Context(), ann, script, "--gres=gpu:shared", "--comment=app="+small)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		r.state(30*time.Second, id, "COMPLETED")
		vars, _ := os.ReadFile(r.Path("out", id+".env"))
		if !strings.Contains(string(vars), "CUDA_MPS_PIPE_DIRECTORY="+r.Path("node", "mps", "gpu0", "pipe")+"\n") {
			t.Errorf("job %s has no MPS daemon: %s", id, vars)
		}
		pipe, _ := os.ReadFile(r.Path("out", id+".pipe"))
		if !strings.Contains(string(pipe), "control") {
			t.Errorf("nobody serves job %s's pipe: %s", id, pipe)
		}
	}
	if !slurmtest.Wait(t.Context(), 10*time.Second, func() bool {
		left, err := os.ReadDir(r.Path("node", "jobs"))
		return err == nil && len(left) == 0 && len(r.took("epilog")) == 2 && len(r.took("epilog-slurmctld")) == 2
	}) {
		t.Error("the jobs' ends were not noticed")
	}
	wake, _ := os.ReadFile(r.WakeFile)
	if text := string(wake); text != "end "+ids[0]+"\n" && text != "end "+ids[1]+"\n" { // the last one's
		t.Errorf("the bridge was not woken: %q", wake)
	}
	if out, err := r.Run(t.Context(), "scontrol", "show", "node", "n1"); err != nil || strings.Contains(out, "DRAIN") {
		t.Errorf("%v %s", err, out)
	}
}
