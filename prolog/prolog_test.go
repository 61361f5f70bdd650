package prolog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/prolog/settings"
)

func env(kv ...string) func(string) string {
	m := map[string]string{
		"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_JOB_USER": "ann", "SLURM_JOB_GPUS": "0",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
	}
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
	must.OK(t, built.Into(dir, "gpusim"))
	control := filepath.Join(dir, "nvidia-cuda-mps-control")
	// Sockets need a short path.
	run := must.Get(os.MkdirTemp("", "sbh"))(t)
	t.Cleanup(func() { os.RemoveAll(run) })
	// The MPS server is the job's user's, who must get to its program.
	must.OK(t, os.Chmod(run, 0o755), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	state := filepath.Join(run, "state")
	if out, err := exec.Command(sim, "init", "--state", state, "--gpus", "2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h := &Hook{Dir: Dir(run), Now: time.Now}
	h.MPS = &MPS{Dir: h.Dir, Control: control, Env: []string{"GPUSIM_STATE=" + state}, Answer: time.Minute}
	return h
}

func TestDaemonLivesFromFirstToLastSharer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	h := simulated(t)
	ctx := context.Background()
	must.OK(t, h.Prolog(ctx, env()))
	if !h.MPS.answers(ctx, 0) {
		t.Fatal("no daemon after the prolog")
	}
	must.OK(t, h.Prolog(ctx, env("SLURM_JOB_ID", "8")))
	var out bytes.Buffer
	if err := h.TaskProlog(&out, env()); err != nil ||
		!strings.Contains(out.String(), "export CUDA_MPS_PIPE_DIRECTORY="+h.MPS.Pipe(0)+"\n") {
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
	must.OK(t, h.Prolog(ctx, env()))
	must.OK(t, syscall.Kill(daemonPID(t, h), syscall.SIGKILL))
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
	if _, err := FromEnv(env("SLURM_JOB_GPUS", ""), time.Now()); !errors.Is(err, ErrNoGPU) {
		t.Errorf("no GPU: %v", err)
	}
	for _, id := range []string{
		"sEKNKTV3WPV500", "", "12", "sEKNKTV3WPV50", "sEKNKTV3WPV5000", "SEKNKTV3WPV500", "sEKNKTV3WPVI00", "../../etc/pass",
		"sEKNKTV3WPV500\n",
	} {
		j := must.Get(FromEnv(env("SLURM_JOB_SLUID", id, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1e9"), time.Now()))(t)
		must.Equal(t, [2]any{j.SLUID, j.Percent}, [2]any{map[bool]string{true: id}[id == "sEKNKTV3WPV500"], 0}, id)
	}
}

// A link that somebody put where a job's file belongs is not followed.
func TestLinkInPlaceOfAJobsFile(t *testing.T) {
	dir := Dir(t.TempDir())
	target := dir.path("target")
	must.OK(t, dir.Make(), os.WriteFile(target, []byte("keep"), 0o600), os.Symlink(target, dir.running(7)),
		dir.Begin(&Job{JobID: 7}))
	must.Equal(t, string(must.Get(os.ReadFile(target))(t)), "keep")
}

// A daemon that hangs at the last epilog is ended by force, and with it its
// servers; so is one that hangs when a job begins.
func TestHungDaemonIsEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	h := simulated(t)
	ctx := context.Background()
	must.OK(t, h.Prolog(ctx, env()))
	pid := daemonPID(t, h)
	must.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
	h.MPS.Answer = 3 * time.Second
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
		must.Get(h.Dir.End(id, time.Now(), "0:0"))(t)
	}
	if err := h.Prolog(ctx, env("SLURM_JOB_ID", "8")); err != nil {
		t.Errorf("beside a daemon that hangs: %v", err)
	}
	again := daemonPID(t, h)
	if again == pid || !h.MPS.answers(ctx, 0) {
		t.Errorf("daemon %d in place of %d answers: %v", again, pid, h.MPS.answers(ctx, 0))
	}
	must.OK(t, syscall.Kill(again, syscall.SIGSTOP))
	if err := h.Epilog(ctx, env("SLURM_JOB_ID", "8")); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("nobody was told: %v", err)
	}
	until(t, "the daemons' end", func() bool {
		return started("", pid) == 0 && started("", again) == 0 && len(h.MPS.running(0, controlName, serverName)) == 0
	})
	if _, err := os.Stat(h.MPS.Pipe(0)); err == nil {
		t.Error("its pipe directory is still there")
	}
}

func daemonPID(t *testing.T, h *Hook) int {
	t.Helper()
	found := h.MPS.running(0, controlName)
	if len(found) != 1 {
		t.Fatalf("daemons %v", found)
	}
	return found[0]
}

// What a job's processes are told. A sharer whose GPU has no daemon must not be sent to GPU 0 of the whole node.
func TestTaskProlog(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now}
	h.MPS = &MPS{Dir: h.Dir}
	print := func(kv ...string) string {
		var out bytes.Buffer
		_ = h.TaskProlog(&out, env(kv...))
		return out.String()
	}
	const share, inherited = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "SLURM_SHARDS_ON_NODE"
	// A job that asked for a whole GPU and holds shares of one: its steps are not to ask for it again.
	asked := []string{"SLURM_GPUS_PER_NODE", "1", "SLURM_TRES_PER_TASK", "cpu=2,gres/gpu=1"}
	must.Equal(t, print(asked...), "unset SLURM_GPUS_PER_NODE\nexport SLURM_TRES_PER_TASK=cpu=2\n", "it asks for a whole GPU")
	must.Equal(t, print(append(asked, share, "")...), "", "it has a whole GPU")
	must.Equal(t, print(), "", "without a daemon")
	control := filepath.Join(h.MPS.Pipe(0), "control")
	must.OK(t, os.MkdirAll(h.MPS.Pipe(0), 0o755))
	daemon := must.Get(net.ListenUnix("unixpacket", &net.UnixAddr{Name: control, Net: "unixpacket"}))(t)
	must.Equal(t, print(), "", "without a prolog, so that the daemon ends while it runs")
	must.OK(t, h.Dir.Begin(&Job{JobID: 7, GPUs: []int{0}, Percent: 50}))
	const (
		all, limited  = "export " + share + "=100\n", "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M\n"
		jaxName, tf   = "XLA_PYTHON_CLIENT_PREALLOCATE=false", "TF_FORCE_GPU_ALLOW_GROWTH=true"
		jax, jaxMark  = "export " + jaxName + "\n", "export SLURMBRIDGE_FRAMEWORKS=7:" + jaxName
		first, second = "GPU-a", "GPU-b"
	)
	mps := func(device, more string) string {
		if device != "" {
			device = "export CUDA_VISIBLE_DEVICES=" + device + "\n"
		}
		return "export CUDA_MPS_PIPE_DIRECTORY=" + h.MPS.Pipe(0) + "\n" + device + more + "export SLURMBRIDGE_MPS_JOB=7\n"
	}
	one, two := []Card{{UUID: first}}, []Card{{UUID: first}, {Index: 1, UUID: second}}
	for _, c := range []struct {
		name string
		hook Hook // of the node, its folder and its MPS aside
		env  []string
		want string
	}{
		{"a share", Hook{}, nil, mps("0", all)},
		{"another share", Hook{}, []string{share, "34"}, mps("0", all)},
		{"shards", Hook{}, []string{share, "", inherited, "34"}, mps("0", all)},
		{"all shares", Hook{}, []string{share, "100"}, ""},
		{"a whole GPU", Hook{}, []string{share, ""}, ""},
		{"several GPUs", Hook{}, []string{"SLURM_JOB_GPUS", "0,1"}, ""},
		{"no GPUs", Hook{}, []string{"SLURM_JOB_GPUS", "0\nexport LD_PRELOAD=/x"}, ""},
		{"no share", Hook{}, []string{share, "5\nexport LD_PRELOAD=/x"}, ""},
		{"asked for by hand", Hook{}, []string{"SLURMBRIDGE_HAND", "1"}, mps("0", "")},
		{"all shards, and a share that a sharer left behind", Hook{}, []string{inherited, "100"}, ""},
		{"a whole GPU, and such a share, where shares are gres/shard", Hook{Shard: true}, nil, ""},
		// Frameworks are told not to take the whole card, where the job doesn't say otherwise, and also while it is alone.
		{
			"frameworks",
			Hook{FrameworkEnv: true},
			nil,
			jax + "export " + tf + "\n" + jaxMark + ":" + tf + "\n" + mps("0", all),
		},
		{
			"frameworks of a job alone that has set one",
			Hook{FrameworkEnv: true},
			[]string{share, "100", "TF_FORCE_GPU_ALLOW_GROWTH", "false"},
			jax + jaxMark + "\n",
		},
		{"frameworks of a job that doesn't share", Hook{FrameworkEnv: true}, []string{share, ""}, ""},
		// A number stays a number where a job can reach one GPU alone: programs read it.
		{"one GPU", Hook{Cards: one}, []string{"CUDA_VISIBLE_DEVICES", "0"}, mps("", all)},
		{
			"one GPU, and a lost one",
			Hook{Cards: []Card{{UUID: first}, {Index: 1, Lost: true}}},
			[]string{"CUDA_VISIBLE_DEVICES", "0"},
			mps("", all),
		},
		{"several", Hook{Cards: two}, []string{"CUDA_VISIBLE_DEVICES", "0"}, mps(first, all)},
		{"kept to its own", Hook{Cards: two, Constrains: true}, []string{"CUDA_VISIBLE_DEVICES", "0"}, mps("", all)},
		{"another number", Hook{Cards: one, Constrains: true}, []string{"CUDA_VISIBLE_DEVICES", "1"}, mps(first, all)},
		{"a name of Slurm's", Hook{Cards: one, Constrains: true}, []string{"CUDA_VISIBLE_DEVICES", first}, mps(first, all)},
	} {
		c.hook.Dir, c.hook.MPS = h.Dir, h.MPS
		h = &c.hook
		must.OK(t, h.handOut(0))
		must.Equal(t, print(c.env...), c.want, c.name)
	}
	h.Cards = nil
	must.OK(t, h.handOut(0, &Job{JobID: 7, MemLimitMiB: 10240}, &Job{JobID: 8, MemLimitMiB: 5}))
	must.Equal(t, print(), mps("0", all+limited), "held to a part of the memory")
	// A daemon that died without a word is none: up to driver 535 it leaves its socket, and from 550 on a pid file that
	// any user can have written.
	daemon.SetUnlinkOnClose(false)
	must.OK(t, daemon.Close(), os.WriteFile(filepath.Join(h.MPS.Pipe(0), controlName+".pid"), fmt.Append(nil, os.Getpid()),
		0o666))
	must.Get(os.Stat(control))(t)
	must.Equal(t, print(), "", "with a dead daemon")
}

// A requeued job's first run is not lost under the second's.
func TestRequeue(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now}
	ctx := context.Background()
	for _, n := range []string{"0", "1"} {
		kv := []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "", "SLURM_JOB_RESTART_COUNT", n, "SLURM_JOB_EXIT_CODE2", n +
			":0"}
		must.OK(t, errors.Join(h.Prolog(ctx, env(kv...)), h.Epilog(ctx, env(kv...))))
	}
	jobs, err := List(h.Dir.Ended())
	if err != nil || len(jobs) != 2 || jobs[0].Restart == jobs[1].Restart || jobs[0].Exit == jobs[1].Exit {
		t.Fatalf("%+v %v", jobs, err)
	}
	if err := errors.Join(h.Dir.Forget(jobs[0]), h.Dir.Forget(jobs[1]), h.Dir.Forget(jobs[1])); err != nil {
		t.Error(err)
	}
}

// Whoever may read the folder of jobs may lock it, for as long as they like.
func TestHooksDontWaitForALockOfUsers(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now}
	must.OK(t, h.Dir.Make())
	f, err := os.Open(h.Dir.Jobs())
	must.OK(t, err)
	defer f.Close()
	must.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	must.OK(t, errors.Join(h.Prolog(t.Context(), env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")),
		h.Epilog(t.Context(), env())))
	entries, err := os.ReadDir(string(h.Dir))
	must.OK(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err != nil || !e.IsDir() && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
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
		must.OK(t, os.MkdirAll(d, 0o755))
		must.OK(t, os.WriteFile(filepath.Join(d, "information"), []byte(c), 0o600))
	}
	cards, err := dir.Cards(proc)
	if err != nil || len(cards) != 3 || cards[0].UUID != "GPU-bbb" || cards[1].UUID != "GPU-aaa" ||
		cards[1].NVMLIndex != 1 || !cards[2].Lost {
		t.Errorf("%+v %v", cards, err)
	}
	must.OK(t, dir.WriteCards([]Card{{Index: 0, UUID: "GPU-ccc"}}))
	if cards, err := dir.Cards(proc); err != nil || len(cards) != 1 || cards[0].UUID != "GPU-ccc" {
		t.Errorf("%+v %v", cards, err)
	}
	must.OK(t, os.WriteFile(dir.path(cardsFile), []byte(`[{"index":`), 0o600))
	if cards, err := dir.Cards(t.TempDir()); err == nil || cards != nil {
		t.Errorf("half a file: %+v %v", cards, err)
	}
}

// A job's control group says what it used, in either version of them and by either name; where there is none, or two
// clusters have a job of that number on the machine, nothing is known.
func TestHostUse(t *testing.T) {
	const id = "sEKNKTV3WPV500"
	for name, c := range map[string]struct {
		files    map[string]string
		cpu, mib float64
	}{
		"version 2": {map[string]string{
			"system.slice/slurmstepd.scope/job_7/cpu.stat":       "usage_usec 2500000\nuser_usec 1\n",
			"system.slice/slurmstepd.scope/job_7/memory.peak":    "3145728\n",
			"system.slice/slurmstepd.scope/job_7/memory.current": "1\n",
		}, 2.5, 3},
		"an older kernel": {map[string]string{
			"system.slice/n1_slurmstepd.scope/" + id + "/cpu.stat":       "usage_usec 1000000\n",
			"system.slice/n1_slurmstepd.scope/" + id + "/memory.current": "1048576\n",
		}, 1, 1},
		"version 1": {map[string]string{
			"cpuacct/slurm_n1/uid_1000/job_7/cpuacct.usage":            "1500000000\n",
			"memory/slurm_n1/uid_1000/job_7/memory.max_usage_in_bytes": "2097152\n",
		}, 1.5, 2},
		"another job's": {map[string]string{"system.slice/slurmstepd.scope/job_77/cpu.stat": "usage_usec 5\n"}, -1, -1},
		"two clusters": {map[string]string{
			"system.slice/a_slurmstepd.scope/job_7/cpu.stat": "usage_usec 5\n",
			"system.slice/b_slurmstepd.scope/job_7/cpu.stat": "usage_usec 5\n",
		}, -1, -1},
		"junk": {map[string]string{
			"system.slice/slurmstepd.scope/job_7/cpu.stat":    "",
			"system.slice/slurmstepd.scope/job_7/memory.peak": "max\n",
		}, -1, -1},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(root, file)
			must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
		}
		if cpu, mib := HostUse(root, &Job{JobID: 7, SLUID: id}); cpu != c.cpu || mib != c.mib {
			t.Errorf("%s: %v s, %v MiB", name, cpu, mib)
		}
	}
}

func FuzzInGroup(f *testing.F) {
	for _, s := range []string{
		"0::/system.slice/slurmstepd.scope/job_12/step_0\n",
		"0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n",
		"4:memory:/slurm/uid_1000/job_12/step_extern\n9:name=systemd:/x\n", "/job_/job_0/s", "/job_99999999999999999999\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, groups []byte) {
		job, id := InGroup(groups)
		if job < 0 || job != 0 && id != "" || id != "" && !sluid().MatchString(id) {
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
			"SLURM_JOB_USER", text, "SLURMD_NODENAME", text, "SLURM_JOB_SLUID", text, "SLURM_JOB_EXIT_CODE2", code,
			"SLURM_JOB_RESTART_COUNT", restart)
		if len(exit(get)) > 7 {
			t.Errorf("exit %q", exit(get))
		}
		j, err := FromEnv(get, time.Unix(1, 0))
		if err != nil {
			return
		}
		if j.JobID <= 0 || len(j.GPUs) == 0 || len(j.GPUs) > 400 || j.SLUID != "" && !sluid().MatchString(j.SLUID) || len(j.Comment) > 1024 ||
			!utf8.ValidString(j.Comment+j.User+j.Node) || strings.ContainsAny(j.Comment, "\n\x00\x1b") {
			t.Errorf("%+v", j)
		}
	})
}

// A folder that is one user's to look into is nobody else's, and stays root's.
func TestOnlyFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root: it looks as other users")
	}
	top, err := os.MkdirTemp("/run", "slurmbridge-acl-")
	must.OK(t, err)
	defer os.RemoveAll(top)
	must.OK(t, os.Chmod(top, 0o755))
	dir := filepath.Join(top, "pipe")
	must.OK(t, os.Mkdir(dir, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "control"), nil, 0o666))
	as := func(uid uint32, name string, args ...string) bool {
		cmd := exec.Command(name, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd.Run() == nil
	}
	const ann, bob = 12345, 12346
	for range 2 { // also the second time
		must.OK(t, onlyFor(dir, ann))
		for uid, may := range map[uint32]bool{0: true, ann: true, bob: false} {
			must.Equal(t, as(uid, "cat", filepath.Join(dir, "control")), may, "user %d may look", uid)
		}
		if as(ann, "touch", filepath.Join(dir, "control.log")) {
			t.Error("the user may write where root's daemon does")
		}
	}
	must.OK(t, onlyFor(dir, bob))
	if as(ann, "ls", dir) || !as(bob, "ls", dir) {
		t.Error("the next user's folder is still the last one's")
	}
	info, err := os.Stat(dir)
	must.OK(t, err)
	if of, ok := info.Sys().(*syscall.Stat_t); !ok || of.Uid != 0 {
		t.Error("the folder has changed its owner")
	}
	if err := onlyFor(filepath.Join(top, strconv.Itoa(1)), ann); err == nil {
		t.Error("a folder that isn't there: no error")
	}
}

// podman returns what runs the simulated GPU's program in a real container with a root folder of its own, which has the
// GPU and nothing else of the node.
func podman(t *testing.T, b *bench) func(env []string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := exec.LookPath("podman")
	if err != nil {
		t.Skip("podman isn't installed (apt-get install podman runc): no container is tried")
	}
	root, storage := t.TempDir(), t.TempDir()
	for _, dir := range []string{"bin", "dev", "etc", "proc", "run", "sys", "tmp"} {
		must.OK(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	must.OK(t, built.Into(filepath.Join(root, "bin"), "gpusim"))
	in := func(env []string, args ...string) *exec.Cmd {
		all := []string{
			"--root", filepath.Join(storage, "root"), "--runroot", filepath.Join(storage, "run"),
			"--storage-driver=vfs", "--cgroup-manager=cgroupfs",
		}
		if runc, err := exec.LookPath("runc"); err == nil {
			all = append(all, "--runtime", runc) // crun refuses control groups of both versions at once
		}
		all = append(all, "run", "--rm", "--network=host", "--pid=host", "--ulimit=nofile=1024:1024",
			"--ulimit=nproc=1024:1024",
			"--volume", b.state+":/gpu", "--env", "GPUSIM_STATE=/gpu")
		cmd := exec.Command(program, append(all, args...)...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + storage}, env...)
		return cmd
	}
	if out, err := in(nil, "--rootfs", root, "/bin/gpusim", "--help").CombinedOutput(); err != nil {
		t.Skipf("podman can't run a container here: %v: %s", err, out)
	}
	return func(env []string, args ...string) *exec.Cmd {
		return in(env, append(args, "--rootfs", root, "/bin/gpusim", "run", "vgg16", "--duration-scale", "0.02")...)
	}
}

// podmanLine is what the users' page tells users of Docker and Podman to add to their command.
func podmanLine(t *testing.T) []string {
	t.Helper()
	page := string(must.Get(os.ReadFile("../contrib/doc/users.md"))(t))
	_, rest, found := strings.Cut(page, "\n    --ipc=host")
	line, _, _ := strings.Cut("--ipc=host"+rest, "\n\n")
	if !found {
		t.Fatal("the users' page has no line for Podman")
	}
	return strings.Fields(line)
}

// A sharer in a container reaches its GPU's MPS daemon with what the users' page tells users of Docker and Podman to
// add, and is held to its limit there; without it the job computes, and without MPS.
func TestSharerInAContainer(t *testing.T) {
	h, b := node(t, "v100", "volta", 20)
	run := podman(t, b)
	b.uid = 0
	root := env("SLURM_JOB_UID", "0")
	must.OK(t, h.Prolog(t.Context(), root), h.handOut(0, &Job{JobID: 7, MemLimitMiB: 20480}))
	vars, err := b.vars(t, "7")
	must.OK(t, err)
	passed := podmanLine(t)
	at := slices.Index(passed, "/run/slurmbridge:/run/slurmbridge")
	if at < 0 {
		t.Fatalf("the folder of the hooks isn't passed: %q", passed)
	}
	passed[at] = string(h.Dir) + ":" + string(h.Dir) // theirs in this test
	for _, c := range []struct {
		name string
		args []string
		mps  bool
	}{{"as the page says", passed, true}, {"as it is", nil, false}} {
		var out, stderr bytes.Buffer
		cmd := run(vars, c.args...)
		cmd.Stdout, cmd.Stderr = &out, &stderr
		var said struct{ MPS bool }
		if err := cmd.Run(); err != nil || json.Unmarshal(out.Bytes(), &said) != nil || said.MPS != c.mps {
			t.Errorf("%s: %v, MPS %v, want %v: %s%s", c.name, err, said.MPS, c.mps, &out, &stderr)
		}
	}
	big := run(vars, passed...)
	big.Args = append(big.Args, "--mem-mib", "30000") // of 40960, and its limit is 20480
	if out, err := big.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("memory")) {
		t.Errorf("it took more than its limit: %v: %s", err, out)
	}
	must.OK(t, h.Epilog(t.Context(), root))
}

// etc/node.yaml, from which the defaults come, describes every setting.
func TestSampleInEtc(t *testing.T) {
	got := must.Get(Load("../etc/node.yaml"))(t)
	must.Equal(t, got, must.Get(Load("/does/not/exist"))(t))
	means := map[string]string{}
	for _, s := range settings.Documented(etc.Node) {
		means[s.Name] = s.Doc
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		if key := f.Tag.Get("mapstructure"); len(means[key]) < 20 {
			t.Errorf("it says of %s: %q", key, means[key])
		}
	}
}

// A job's file is in one folder at every moment: the agent, which looks at any time,
// takes what has ended from one of them, and must not find it in the other afterwards.
func TestFileIsInOneFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	d := Dir(t.TempDir())
	for id := int64(1); id <= 300; id++ {
		j := &Job{JobID: id, GPUs: []int{0}, Start: time.Now()}
		must.OK(t, d.Begin(j))
		done := make(chan error)
		go func() { _, err := d.End(id, time.Now(), "0:0"); done <- err }()
		there := func(path string) bool { _, err := os.Stat(path); return err == nil }
		for !there(d.ended(j)) {
			if !there(d.running(id)) && !there(d.ended(j)) {
				t.Fatalf("job %d is nowhere", id)
			}
			runtime.Gosched()
		}
		if there(d.running(id)) {
			t.Fatalf("job %d runs after it has ended", id)
		}
		must.OK(t, <-done)
	}
}

// An epilog that died between its two steps has told the end: the next hook on that GPU
// moves the file, and the end stays.
func TestEpilogDiesOnTheWay(t *testing.T) {
	now := time.Now().Round(time.Second)
	h := &Hook{Dir: Dir(t.TempDir()), Now: func() time.Time { return now }}
	j := &Job{JobID: 7, GPUs: []int{0}, Percent: 30, Start: now.Add(-time.Minute)}
	must.OK(t, h.Dir.Begin(j))
	j.End, j.Exit = now.Add(-3*time.Second), "1:0"
	must.OK(t, write(h.Dir.running(7), j))
	if left, err := h.closeStale([]*Job{j}); len(left) != 0 || err == nil {
		t.Errorf("%v is left: %v", left, err)
	}
	ended, err := List(h.Dir.Ended())
	if err != nil || len(ended) != 1 || !ended[0].End.Equal(j.End) || ended[0].Exit != "1:0" {
		t.Fatalf("%+v, %v", ended, err)
	}
	// Moved meanwhile: nothing is left to say.
	if left, err := h.closeStale([]*Job{j}); len(left) != 0 || err != nil {
		t.Errorf("%v is left: %v", left, err)
	}
	// The same run's prolog can't come again, but a requeued one's does.
	must.OK(t, write(h.Dir.running(7), j))
	must.OK(t, h.Dir.Begin(&Job{JobID: 7, Restart: 1, GPUs: []int{0}, Start: now}))
	if ended, err = List(h.Dir.Ended()); err != nil || len(ended) != 1 || !ended[0].End.Equal(j.End) {
		t.Errorf("%+v, %v", ended, err)
	}
	if running, err := List(h.Dir.Jobs()); err != nil || len(running) != 1 || running[0].Restart != 1 ||
		!running[0].End.IsZero() {
		t.Errorf("%+v, %v", running, err)
	}
}

// A daemon that was told to quit and says yes has a moment to be gone; one that lies
// is killed, and that is told.
func TestDaemonThatIsJustEnding(t *testing.T) {
	control := filepath.Join(t.TempDir(), "control")
	must.OK(t, os.WriteFile(control, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	m := &MPS{Dir: Dir(t.TempDir()), Control: control}
	for _, c := range []struct{ lasts, want string }{
		{"0.2", ""},
		{"100", "did not end by itself, 1 of its processes were killed"},
	} {
		must.OK(t, os.MkdirAll(m.Pipe(0), 0o755))
		daemon := exec.Command("sleep", c.lasts)
		daemon.Args[0] = controlName
		daemon.Env = m.environ(0)
		must.OK(t, daemon.Start())
		done := make(chan error, 1)
		go func() { done <- daemon.Wait() }()
		for len(m.running(0, controlName)) == 0 { // the kernel shows a program's name a moment after it has started it
			time.Sleep(time.Millisecond)
		}
		begin := time.Now()
		err := m.Release(t.Context(), 0)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s s: %v", c.lasts, err)
		}
		if took := time.Since(begin); took > 90*time.Second {
			t.Errorf("%s s: took %v", c.lasts, took)
		}
		if err := <-done; (err == nil) != (c.want == "") {
			t.Errorf("%s s: ended with %v", c.lasts, err)
		}
		if _, err := os.Stat(m.Pipe(0)); !os.IsNotExist(err) {
			t.Error("the pipe directory is left", err)
		}
	}
}
