package prolog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func env(kv ...string) func(string) string {
	m := map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_JOB_USER": "ann", "SLURM_JOB_GPUS": "0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) string { return m[k] }
}

// simulated makes a node with one simulated GPU and its nvidia-cuda-mps-control.
func simulated(t *testing.T) *Hook {
	t.Helper()
	dir := t.TempDir()
	sim := filepath.Join(dir, "gpusim")
	if out, err := exec.Command("go", "build", "-o", sim, "../gpuprof/gpusim/cmd/gpusim").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	state := filepath.Join(dir, "state")
	if out, err := exec.Command(sim, "init", "--state", state, "--gpus", "2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	control := filepath.Join(dir, "nvidia-cuda-mps-control")
	for _, name := range []string{control, filepath.Join(dir, "nvidia-cuda-mps-server")} {
		if err := os.Symlink(sim, name); err != nil {
			t.Fatal(err)
		}
	}
	// Sockets need a short path.
	run, err := os.MkdirTemp("", "sbh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	h := &Hook{Dir: Dir(run), Now: time.Now}
	h.MPS = &MPS{Dir: h.Dir, Control: control, OneUser: true, Env: []string{"GPUSIM_STATE=" + state}}
	return h
}

func TestDaemonLivesFromFirstToLastSharer(t *testing.T) {
	h := simulated(t)
	ctx := context.Background()
	if err := h.Prolog(ctx, env()); err != nil {
		t.Fatal(err)
	}
	if !h.MPS.answers(ctx, 0) {
		t.Fatal("no daemon after the prolog")
	}
	if err := h.Prolog(ctx, env("SLURM_JOB_ID", "8")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := h.TaskProlog(&out, env()); err != nil || !strings.Contains(out.String(), "export CUDA_MPS_PIPE_DIRECTORY="+h.MPS.Pipe(0)+"\n") {
		t.Errorf("%q %v", out.String(), err)
	}
	if err := h.Epilog(ctx, env()); err != nil {
		t.Error(err)
	}
	if !h.MPS.answers(ctx, 0) {
		t.Error("the daemon went with the first of two sharers")
	}
	if err := h.Epilog(ctx, env("SLURM_JOB_ID", "8")); err != nil {
		t.Error(err)
	}
	if h.MPS.answers(ctx, 0) {
		t.Error("the daemon is still there after the last sharer")
	}
	if _, err := os.Stat(h.MPS.Pipe(0)); err == nil {
		t.Error("its pipe directory is still there")
	}
	if jobs, err := List(h.Dir.Ended()); err != nil || len(jobs) != 2 || jobs[0].End.IsZero() {
		t.Errorf("ended: %+v %v", jobs, err)
	}
}

func TestKilledDaemonIsReplaced(t *testing.T) {
	h := simulated(t)
	ctx := context.Background()
	if err := h.Prolog(ctx, env()); err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(filepath.Join(h.MPS.Pipe(0), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("kill", "-9", strings.TrimSpace(string(pid))).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if err := h.Prolog(ctx, env("SLURM_JOB_ID", "8")); err != nil {
		t.Fatal(err)
	}
	if !h.MPS.answers(ctx, 0) {
		t.Error("no new daemon in place of the killed one")
	}
	for _, id := range []string{"7", "8"} {
		if err := h.Epilog(ctx, env("SLURM_JOB_ID", id)); err != nil {
			t.Error(err)
		}
	}
}

func TestManyPrologsAtOnce(t *testing.T) {
	h := simulated(t)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if err := h.Prolog(context.Background(), env("SLURM_JOB_ID", strconv.Itoa(100+i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	jobs, err := List(h.Dir.Jobs())
	if err != nil || len(jobs) != 12 {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
	for _, j := range jobs {
		id := j.JobID
		wg.Go(func() {
			if err := h.Epilog(context.Background(), env("SLURM_JOB_ID", strconv.FormatInt(id, 10))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if h.MPS.answers(context.Background(), 0) {
		t.Error("the daemon is still there")
	}
}

func TestWhatHangsIsLeft(t *testing.T) {
	dir := t.TempDir()
	control := filepath.Join(dir, "control")
	if err := os.WriteFile(control, []byte("#!/bin/sh\nsleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := &Hook{Dir: Dir(dir), Now: time.Now, MPS: &MPS{Dir: Dir(dir), Control: control}}
	start := time.Now()
	err := Run(300*time.Millisecond, func(ctx context.Context) error { return h.Prolog(ctx, env()) })
	if err == nil || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	if _, err := os.Stat(h.Dir.file("jobs", 7)); err != nil {
		t.Errorf("the job's file: %v; MPS must not cost the record", err)
	}
	hang := make(chan struct{})
	defer close(hang)
	if err := Run(100*time.Millisecond, func(context.Context) error { <-hang; return nil }); err == nil {
		t.Error("a hang that can't be cancelled was waited for")
	}
	if err := Run(time.Second, func(context.Context) error { panic("x") }); err == nil {
		t.Error("a panic is no error")
	}
}

func TestHostileVariables(t *testing.T) {
	for name, get := range map[string]func(string) string{
		"path in the id":   env("SLURM_JOB_ID", "../../etc/passwd"),
		"no id":            env("SLURM_JOB_ID", ""),
		"negative id":      env("SLURM_JOB_ID", "-5"),
		"uid of letters":   env("SLURM_JOB_UID", "root"),
		"endless GPUs":     env("SLURM_JOB_GPUS", "0-99999999"),
		"GPUs of nonsense": env("SLURM_JOB_GPUS", "0;rm -rf /"),
	} {
		if _, err := FromEnv(get, time.Now()); !errors.Is(err, ErrBadEnv) {
			t.Errorf("%s: %v", name, err)
		}
	}
	j, err := FromEnv(env("SLURM_JOB_COMMENT", "a\nb\x00\xff"+strings.Repeat("é", 5000), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1e9"), time.Now())
	if err != nil || strings.ContainsAny(j.Comment, "\n\x00") || len(j.Comment) > 1024 || j.Percent != 0 {
		t.Errorf("%+v %v", j, err)
	}
	if _, err := FromEnv(env("SLURM_JOB_GPUS", ""), time.Now()); !errors.Is(err, ErrNoGPU) {
		t.Errorf("no GPU: %v", err)
	}
	// A link that somebody put where the job's file belongs is not followed.
	dir := Dir(t.TempDir())
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(string(dir), "target")
	if err := os.WriteFile(target, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, dir.file("jobs", 7)); err != nil {
		t.Fatal(err)
	}
	j.JobID = 7
	if err := dir.Begin(j); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(target); err != nil || string(text) != "keep" {
		t.Errorf("the link's target became %q, %v", text, err)
	}
}

func FuzzIndexes(f *testing.F) {
	f.Add("0,2-3")
	f.Fuzz(func(t *testing.T, s string) {
		out, err := indexes(s)
		if err == nil && len(out) > 400 {
			t.Errorf("%d GPUs", len(out))
		}
	})
}
