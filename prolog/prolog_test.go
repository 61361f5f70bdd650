package prolog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
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
	build := exec.Command("go", "build", "-o", sim, "../contrib/testbed/gpusim/cmd/gpusim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is installed: it runs in any root folder
	if out, err := build.CombinedOutput(); err != nil {
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
	// The MPS server is the job's user's.
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(run, "state")
	if out, err := exec.Command(sim, "init", "--state", state, "--gpus", "2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h := &Hook{Dir: Dir(run), Now: time.Now}
	h.MPS = &MPS{Dir: h.Dir, Control: control, Env: []string{"GPUSIM_STATE=" + state}}
	return h
}

func TestDaemonLivesFromFirstToLastSharer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
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
	// Whether its server had clients nobody knows any more.
	if err := h.Prolog(ctx, env("SLURM_JOB_ID", "8")); err != nil && !strings.HasSuffix(err.Error(), "lost under jobs 7") {
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
	if err == nil || time.Since(start) > 50*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	if _, err := os.Stat(h.Dir.running(7)); err != nil {
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
	if err := os.Symlink(target, dir.running(7)); err != nil {
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

// A daemon that hangs at the last epilog is ended by force, and with it its
// servers; so is one that hangs when a job begins.
func TestHungDaemonIsEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	h := simulated(t)
	ctx := context.Background()
	if err := h.Prolog(ctx, env()); err != nil {
		t.Fatal(err)
	}
	pid := daemonPID(t, h)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// As long as a job uses it nobody ends it: it may only be slow.
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := h.Prolog(short, env("SLURM_JOB_ID", "9")); err == nil || !strings.Contains(err.Error(), "left to the jobs") {
		t.Errorf("beside a job whose daemon hangs: %v", err)
	}
	if now := daemonPID(t, h); now != pid {
		t.Errorf("daemon %d was replaced by %d under a job", pid, now)
	}
	for _, id := range []int64{7, 9} {
		if _, err := h.Dir.End(id, time.Now(), "0:0"); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Prolog(ctx, env("SLURM_JOB_ID", "8")); err != nil {
		t.Errorf("beside a daemon that hangs: %v", err)
	}
	again := daemonPID(t, h)
	if again == pid || !h.MPS.answers(ctx, 0) {
		t.Errorf("daemon %d in place of %d answers: %v", again, pid, h.MPS.answers(ctx, 0))
	}
	if err := syscall.Kill(again, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := h.Epilog(ctx, env("SLURM_JOB_ID", "8")); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("nobody was told: %v", err)
	}
	for _, p := range []int{pid, again} {
		gone := false
		for range 100 {
			if gone = syscall.Kill(p, 0) != nil || zombie(p); gone {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !gone {
			t.Errorf("daemon %d is still there", p)
		}
	}
	left := h.MPS.running(0, controlName, serverName)
	for range 100 { // a killed one takes its time on a busy machine
		if len(left) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
		left = h.MPS.running(0, controlName, serverName)
	}
	if len(left) != 0 {
		t.Errorf("processes %v were left", left)
	}
	if _, err := os.Stat(h.MPS.Pipe(0)); err == nil {
		t.Error("its pipe directory is still there")
	}
}

func daemonPID(t *testing.T, h *Hook) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.MPS.Pipe(0), "nvidia-cuda-mps-control.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// A sharer whose GPU has no daemon must not be sent to GPU 0 of the whole node.
func TestTaskProlog(t *testing.T) {
	dir := Dir(t.TempDir())
	h := &Hook{Dir: dir, MPS: &MPS{Dir: dir}, Now: time.Now}
	print := func(kv ...string) string {
		var out bytes.Buffer
		_ = h.TaskProlog(&out, env(kv...))
		return out.String()
	}
	if got := print(); got != "" {
		t.Errorf("without a daemon: %q", got)
	}
	if err := os.MkdirAll(h.MPS.Pipe(0), 0o755); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(h.MPS.Pipe(0), "control")
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := print(); got != "" {
		t.Errorf("without a prolog, so that the daemon ends while it runs: %q", got)
	}
	if err := dir.Begin(&Job{JobID: 7, GPUs: []int{0}, Percent: 50}); err != nil {
		t.Fatal(err)
	}
	want := func(percent string) string {
		s := "export CUDA_MPS_PIPE_DIRECTORY=" + h.MPS.Pipe(0) + "\nexport CUDA_VISIBLE_DEVICES=0\n"
		if percent != "" {
			s += "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + percent + "\n"
		}
		return s + "export SLURMBRIDGE_MPS_JOB=7\n"
	}
	shard := []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "", "SLURM_SHARDS_ON_NODE", "34"}
	for _, c := range []struct {
		percentage, want string
		env              []string
	}{
		{"off", want("100"), nil},
		{"share", want(""), nil},
		{"generous", want("68"), []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "34"}},
		{"generous", want("100"), []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "60"}},
		{"off", want("100"), shard},
		{"generous", want("68"), shard},
		{"off", "", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"}},
		{"off", "", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""}},
		{"off", "", []string{"SLURM_JOB_GPUS", "0,1"}},
		{"off", "", []string{"SLURM_JOB_GPUS", "0\nexport LD_PRELOAD=/x"}},
		{"off", "", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5\nexport LD_PRELOAD=/x"}},
	} {
		h.Percentage = c.percentage
		if got := print(c.env...); got != c.want {
			t.Errorf("%s %q: %q, want %q", c.percentage, c.env, got, c.want)
		}
	}
	// Frameworks are told not to take the whole card, where the job doesn't say otherwise and also as long as it is alone.
	h.Percentage, h.FrameworkEnv = "off", true
	const jax, tf = "export XLA_PYTHON_CLIENT_PREALLOCATE=false\n", "export TF_FORCE_GPU_ALLOW_GROWTH=true\n"
	if got := print(); got != jax+tf+want("100") {
		t.Errorf("frameworks: %q", got)
	}
	if got := print("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100", "TF_FORCE_GPU_ALLOW_GROWTH", "false"); got != jax {
		t.Errorf("frameworks of a job alone that has set one: %q", got)
	}
	if got := print("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""); got != "" {
		t.Errorf("frameworks of a job that doesn't share: %q", got)
	}
	h.FrameworkEnv = false
	// The GPU is named by its UUID, and the shares of a shard are not the percentage that a sharer left behind.
	h.Cards = []Card{{UUID: "GPU-1"}}
	if got := print("SLURM_SHARDS_ON_NODE", "100"); got != "" {
		t.Errorf("a whole GPU's shares with an inherited percentage: %q", got)
	}
	if got := print(); !strings.Contains(got, "export CUDA_VISIBLE_DEVICES=GPU-1\n") {
		t.Errorf("with a known UUID: %q", got)
	}
	h.Percentage, h.Cards = "share", nil
	for _, c := range []struct{ limit, arch, share, want string }{
		{"off", "ampere", "50", ""},
		{"", "ampere", "50", ""},
		{"share", "", "50", ""},
		{"share", "pascal", "50", ""},
		{"share", "ampere", "25", "0=10240M"},
		{"generous", "hopper", "25", "0=20480M"},
		{"generous", "volta", "60", "0=40960M"},
	} {
		h.MemoryLimit, h.Cards = c.limit, []Card{{Arch: c.arch, MemMiB: 40960}}
		w := want("")
		if c.want != "" {
			w = strings.Replace(w, "export SLURMBRIDGE", "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+c.want+"\nexport SLURMBRIDGE", 1)
		}
		if got := print("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", c.share); got != w {
			t.Errorf("%+v: %q, want %q", c, got, w)
		}
	}
	// A daemon that died without a word is none.
	if err := os.WriteFile(filepath.Join(h.MPS.Pipe(0), controlName+".pid"), []byte("4194303\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := print(); got != "" {
		t.Errorf("with a dead daemon: %q", got)
	}
}

// The job map names the jobs of each GPU by DCGM's count, and is empty without them.
func TestJobMap(t *testing.T) {
	dir := Dir(t.TempDir())
	h := &Hook{Dir: dir, JobMap: filepath.Join(string(dir), "map"), Now: time.Now, Cards: []Card{{Index: 0, NVMLIndex: 3, UUID: "GPU-a"}, {Index: 1, NVMLIndex: 0, UUID: "GPU-b"}}}
	ctx := context.Background()
	read := func(n string) string { b, _ := os.ReadFile(filepath.Join(h.JobMap, n)); return string(b) }
	whole := []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(h.Prolog(ctx, env(whole...)))
	must(h.Prolog(ctx, env(append(whole, "SLURM_JOB_ID", "8")...)))
	must(h.Prolog(ctx, env(append(whole, "SLURM_JOB_ID", "9", "SLURM_JOB_GPUS", "0-1")...)))
	if read("3") != "7\n8\n9\n" || read("0") != "9\n" {
		t.Errorf("%q %q", read("3"), read("0"))
	}
	if j, err := ReadJob(dir.running(9)); err != nil || strings.Join(j.UUIDs, " ") != "GPU-a GPU-b" {
		t.Errorf("%+v %v", j, err)
	}
	for _, id := range []string{"7", "8"} {
		must(h.Epilog(ctx, env("SLURM_JOB_ID", id)))
	}
	if read("3") != "9\n" {
		t.Errorf("%q", read("3"))
	}
	must(h.Epilog(ctx, env("SLURM_JOB_ID", "9")))
	if read("3") != "" || read("0") != "" {
		t.Errorf("left: %q %q", read("3"), read("0"))
	}
	if left, err := os.ReadDir(h.JobMap); err != nil || len(left) != 2 {
		t.Errorf("files of the map that a reader may have seen: %v %v", left, err)
	}
}

// A requeued job's first run is not lost under the second's.
func TestRequeue(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now}
	ctx := context.Background()
	for _, n := range []string{"0", "1"} {
		kv := []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "", "SLURM_JOB_RESTART_COUNT", n, "SLURM_JOB_EXIT_CODE2", n + ":0"}
		if err := errors.Join(h.Prolog(ctx, env(kv...)), h.Epilog(ctx, env(kv...))); err != nil {
			t.Fatal(err)
		}
	}
	jobs, err := List(h.Dir.Ended())
	if err != nil || len(jobs) != 2 || jobs[0].Restart == jobs[1].Restart || jobs[0].Exit == jobs[1].Exit {
		t.Fatalf("%+v %v", jobs, err)
	}
	if err := errors.Join(h.Dir.Forget(jobs[0]), h.Dir.Forget(jobs[1]), h.Dir.Forget(jobs[1])); err != nil {
		t.Error(err)
	}
}

func TestSlurmConf(t *testing.T) {
	for conf, want := range map[string]bool{
		"":                                 false,
		"GresTypes=gpu,shard\n":            true,
		"# GresTypes=gpu,shard\n":          false,
		"grestypes = gpu , Shard # both\n": true,
		"GresTypes=gpu\nGresTypes=shard":   true,
		"GresTypes=gpu,mps\n":              false,
	} {
		if got := gresTypesHave(strings.NewReader(conf), "shard"); got != want {
			t.Errorf("%q: %v", conf, got)
		}
	}
}

func TestCardsWithoutTheAgent(t *testing.T) {
	dir, proc := Dir(t.TempDir()), t.TempDir()
	for i, c := range []string{
		"Model: \t\t NVIDIA TITAN Xp\nGPU UUID: \t GPU-bbb\nDevice Minor: \t 4\n",
		"Model: TITAN Xp\nGPU UUID: GPU-aaa\nDevice Minor: 1\n",
		"Model: TITAN Xp\nGPU UUID: GPU-????????\nDevice Minor: 2\n",
	} {
		d := filepath.Join(proc, "driver/nvidia/gpus", fmt.Sprintf("0000:0%d:00.0", i))
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "information"), []byte(c), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cards, err := dir.Cards(proc)
	if err != nil || len(cards) != 2 || cards[0].UUID != "GPU-aaa" || cards[1].UUID != "GPU-bbb" || cards[1].Index != 1 {
		t.Errorf("%+v %v", cards, err)
	}
	if err := dir.WriteCards([]Card{{Index: 0, UUID: "GPU-ccc"}}); err != nil {
		t.Fatal(err)
	}
	if cards, err := dir.Cards(proc); err != nil || len(cards) != 1 || cards[0].UUID != "GPU-ccc" {
		t.Errorf("%+v %v", cards, err)
	}
	if err := os.WriteFile(dir.path(cardsFile), []byte(`[{"index":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if cards, err := dir.Cards(t.TempDir()); err == nil || cards != nil {
		t.Errorf("half a file: %+v %v", cards, err)
	}
}

func TestKindOf(t *testing.T) {
	for name, want := range map[string]string{
		"prolog": "prolog", "slurmbridge-epilog": "epilog", "50-slurmbridge-taskprolog": "taskprolog", "90-prolog": "prolog",
		"slurmbridge-hook": "", "": "", "50-": "", "epilogue": "",
	} {
		if got := KindOf(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// From 26.05 on CUDA_VISIBLE_DEVICES may name GPUs by UUID (gres.conf's Flags=env_uuid).
// SLURM_JOB_GPUS goes on counting, and an MPS client counts from its daemon's first.
func TestVisibleDevicesByUUID(t *testing.T) {
	h := simulated(t)
	get := env("CUDA_VISIBLE_DEVICES", "GPU-5a9cdd9b-1c73-4c1a-a1c5-1d3e6a1f0b21", "SLURM_JOB_GPUS", "0", "SLURM_JOB_SLUID", "sEKNKTV3WPV500")
	must(t, h.Prolog(t.Context(), get))
	if j, err := ReadJob(h.Dir.running(7)); err != nil || !slices.Equal(j.GPUs, []int{0}) || j.SLUID != "sEKNKTV3WPV500" {
		t.Errorf("%+v %v", j, err)
	}
	var out bytes.Buffer
	if err := h.TaskProlog(&out, get); err != nil || !strings.Contains(out.String(), "export CUDA_VISIBLE_DEVICES=0\n") {
		t.Errorf("%q %v", out.String(), err)
	}
	must(t, h.Epilog(t.Context(), get))
}

func TestSLUID(t *testing.T) {
	for _, bad := range []string{"", "12", "sEKNKTV3WPV50", "sEKNKTV3WPV5000", "SEKNKTV3WPV500", "sEKNKTV3WPVI00", "../../etc/pass", "sEKNKTV3WPV500\n"} {
		if j, err := FromEnv(env("SLURM_JOB_SLUID", bad), time.Now()); err != nil || j.SLUID != "" {
			t.Errorf("%q: %+v %v", bad, j, err)
		}
	}
}

func FuzzInGroup(f *testing.F) {
	for _, s := range []string{
		"0::/system.slice/slurmstepd.scope/job_12/step_0\n", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n",
		"4:memory:/slurm/uid_1000/job_12/step_extern\n9:name=systemd:/x\n", "/job_/job_0/s", "/job_99999999999999999999\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, groups []byte) {
		job, id := InGroup(groups)
		if job < 0 || job != 0 && id != "" || id != "" && !sluid.MatchString(id) {
			t.Errorf("%d %q", job, id)
		}
		// What a job makes below its own group changes nothing.
		if got, id := InGroup(append([]byte("0::/system.slice/slurmstepd.scope/job_7/"), groups...)); got != 7 || id != "" {
			t.Errorf("%d %q", got, id)
		}
	})
}

func FuzzFromEnv(f *testing.F) {
	f.Add("7", "0", "a", "0:0", "1")
	f.Fuzz(func(t *testing.T, id, gpus, text, code, restart string) {
		get := env("SLURM_JOB_ID", id, "SLURM_JOB_GPUS", gpus, "SLURM_JOB_COMMENT", text, "SLURM_JOB_WORK_DIR", text,
			"SLURM_JOB_USER", text, "SLURMD_NODENAME", text, "SLURM_JOB_SLUID", text, "SLURM_JOB_EXIT_CODE2", code, "SLURM_JOB_RESTART_COUNT", restart)
		if len(exit(get)) > 7 {
			t.Errorf("exit %q", exit(get))
		}
		j, err := FromEnv(get, time.Unix(1, 0))
		if err != nil {
			return
		}
		if j.JobID <= 0 || len(j.GPUs) == 0 || j.SLUID != "" && !sluid.MatchString(j.SLUID) || len(j.Comment) > 1024 || !utf8.ValidString(j.Comment+j.User+j.Node) || strings.ContainsAny(j.Comment, "\n\x00\x1b") {
			t.Errorf("%+v", j)
		}
	})
}
