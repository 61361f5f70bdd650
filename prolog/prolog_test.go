package prolog

import (
	"bytes"
	"context"
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

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
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

// simulated makes a node with two simulated GPUs, as gpusim's options say, and their nvidia-cuda-mps-control.
func simulated(t *testing.T, options ...string) *Hook {
	t.Helper()
	dir := t.TempDir()
	run := must.Get(os.MkdirTemp("", "sbh"))(t) // sockets need a short path
	t.Cleanup(func() { os.RemoveAll(run) })
	state := filepath.Join(run, "state")
	options = append([]string{"init", "--state", state, "--gpus", "2"}, options...)
	// The MPS server is the job's user's, who must get to its program.
	must.OK(t, built.Into(dir, "gpusim"), os.Chmod(run, 0o755), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	must.OK(t, exec.Command(filepath.Join(dir, "gpusim"), options...).Run())
	h := &Hook{Dir: Dir(run), Now: time.Now}
	h.MPS = &MPS{
		Dir: h.Dir, Control: filepath.Join(dir, controlName), Env: []string{"GPUSIM_STATE=" + state}, Answer: time.Minute,
	}
	t.Cleanup(func() { h.MPS.kill(0, controlName, serverName) })
	return h
}

// atOnce does something for many at once.
func atOnce(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

func TestDaemonLivesFromFirstToLastSharer(t *testing.T) {
	h := simulated(t)
	const sharers = 12
	hook := func(do func(context.Context, func(string) string) error) func(i int) {
		return func(i int) { says(t, do(t.Context(), env("SLURM_JOB_ID", strconv.Itoa(100+i))), "") }
	}
	atOnce(sharers, hook(h.Prolog))
	must.Equal(t, len(must.Get(List(h.Dir.Jobs()))(t)), sharers)
	must.Equal(t, h.MPS.answers(t.Context(), 0), true, "the daemon is there")
	var out bytes.Buffer
	must.OK(t, h.TaskProlog(&out, env("SLURM_JOB_ID", "100")))
	must.Equal(t, strings.Contains(out.String(), "export CUDA_MPS_PIPE_DIRECTORY="+h.MPS.Pipe(0)+"\n"), true, out.String())
	atOnce(sharers-1, hook(h.Epilog))
	must.Equal(t, h.MPS.answers(t.Context(), 0), true, "the daemon is there for the last sharer")
	hook(h.Epilog)(sharers - 1)
	must.Equal(t, h.MPS.answers(t.Context(), 0), false, "the daemon is there after the last sharer")
	_, err := os.Stat(h.MPS.Pipe(0))
	must.Equal(t, errors.Is(err, os.ErrNotExist), true, "its folder has gone")
	ended := must.Get(List(h.Dir.Ended()))(t)
	must.Equal(t, len(ended), sharers)
	must.Equal(t, ended[0].End.IsZero(), false)
}

func TestKilledDaemonIsReplaced(t *testing.T) {
	h := simulated(t)
	must.OK(t, h.Prolog(t.Context(), env()), syscall.Kill(daemonPID(t, h), syscall.SIGKILL))
	// Whether its server had clients nobody knows any more.
	if err := h.Prolog(t.Context(), env("SLURM_JOB_ID", "8")); err != nil {
		says(t, err, "lost under jobs 7")
	}
	must.Equal(t, h.MPS.answers(t.Context(), 0), true, "there is another daemon")
	must.OK(t, h.Epilog(t.Context(), env()), h.Epilog(t.Context(), env("SLURM_JOB_ID", "8")))
}

// An epilog that was killed once it had closed its job's file is called again, and has the daemon end in peace.
func TestEpilogAgain(t *testing.T) {
	h := simulated(t)
	must.OK(t, h.Prolog(t.Context(), env()))
	must.Get(h.Dir.End(7, time.Now()))(t)
	must.OK(t, h.Epilog(t.Context(), env()))
	must.Equal(t, h.MPS.running(0, controlName, serverName), nil, "what is left")
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
		must.Is(t, must.Err(FromEnv(get, time.Now())), ErrBadEnv, name)
	}
	must.Is(t, must.Err(FromEnv(env("SLURM_JOB_GPUS", ""), time.Now())), ErrNoGPU, "no GPU")
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
		dir.Begin(&JobFile{JobID: 7}))
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
	stop(t, pid)
	// As long as a job uses it nobody ends it: it may only be slow.
	short, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	says(t, h.Prolog(short, env("SLURM_JOB_ID", "9")), "left to the jobs")
	must.Equal(t, daemonPID(t, h), pid, "the daemon under a job")
	for _, id := range []int64{7, 9} {
		must.Get(h.Dir.End(id, time.Now()))(t)
	}
	h.MPS.Answer = 8 * time.Second // for the hung one, and for what its successor is asked on a busy machine
	must.OK(t, h.Prolog(ctx, env("SLURM_JOB_ID", "8")))
	again := daemonPID(t, h)
	must.Equal(t, again != pid && h.MPS.answers(ctx, 0), true, "another daemon answers")
	stop(t, again)
	h.MPS.Answer = time.Second
	says(t, h.Epilog(ctx, env("SLURM_JOB_ID", "8")), "killed")
	until(t, "the daemons' end", func() bool {
		return started("", pid) == 0 && started("", again) == 0 && len(h.MPS.running(0, controlName, serverName)) == 0
	})
	must.Is(t, must.Err(os.Stat(h.MPS.Pipe(0))), os.ErrNotExist, "its pipe directory")
}

// stop has a process hang.
func stop(t *testing.T, pid int) {
	t.Helper()
	must.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
	until(t, "the process's stop", func() bool { return strings.Contains(string(procFile("", pid, "stat")), ") T ") })
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
	must.Equal(t, print(asked...), "unset SLURM_GPUS_PER_NODE\nexport SLURM_TRES_PER_TASK=cpu=2\n", "it asks for a GPU")
	must.Equal(t, print(append(asked, share, "")...), "", "it has a whole GPU")
	must.Equal(t, print(), "", "without a daemon")
	control := filepath.Join(h.MPS.Pipe(0), "control")
	must.OK(t, os.MkdirAll(h.MPS.Pipe(0), 0o755))
	daemon := must.Get(net.ListenUnix("unixpacket", &net.UnixAddr{Name: control, Net: "unixpacket"}))(t)
	must.Equal(t, print(), "", "without a prolog, so that the daemon ends while it runs")
	must.OK(t, h.Dir.Begin(&JobFile{JobID: 7, GPUs: []int{0}, Percent: 50}))
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
		// Slurm leaves SLURM_JOB_GPUS unset in steps, or as the job had it from within which this one was submitted.
		{"in a step", Hook{}, []string{"SLURM_JOB_GPUS", "", "SLURM_STEP_GPUS", "0"}, mps("0", all)},
		{"submitted within a job", Hook{}, []string{"SLURM_JOB_GPUS", "1", "SLURM_STEP_GPUS", "0"}, mps("0", all)},
		{"of a user who makes it up", Hook{}, []string{"SLURM_JOB_GPUS", "0\nexport LD_PRELOAD=/x"}, mps("0", all)},
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
		must.OK(t, h.handOut(0, &JobFile{JobID: 7, MPS: true}))
		must.Equal(t, print(c.env...), c.want, c.name)
	}
	h.Cards = nil
	must.OK(t, h.handOut(0, &JobFile{JobID: 7, MPS: true, MemLimitMiB: 10240}),
		h.handOut(0, &JobFile{JobID: 8, MPS: true, MemLimitMiB: 5}))
	must.Equal(t, print(), mps("0", all+limited), "held to a part of the memory")
	must.OK(t, h.handOut(0, &JobFile{JobID: 7, MPS: true, ByHand: true}))
	must.Equal(t, print(), mps("0", ""), "a session's part by hand")
	// A daemon that died without a word is none: up to driver 535 it leaves its socket, and from 550 on a pid file that
	// any user can have written.
	daemon.SetUnlinkOnClose(false)
	must.OK(t, daemon.Close(), os.WriteFile(filepath.Join(h.MPS.Pipe(0), controlName+".pid"), fmt.Append(nil, os.Getpid()),
		0o666))
	must.Get(os.Stat(control))(t)
	must.Equal(t, print(), "", "with a dead daemon")
}

// Whoever may read the folder of jobs may lock it, for as long as they like.
func TestHooksDontWaitForALockOfUsers(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now}
	must.OK(t, h.Dir.Make())
	f := must.Get(os.Open(h.Dir.Jobs()))(t)
	defer f.Close()
	must.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX), h.Prolog(t.Context(),
		env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")), h.Epilog(t.Context(), env()))
	entries := must.Get(os.ReadDir(string(h.Dir)))(t)
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
		must.OK(t, os.MkdirAll(d, 0o755), os.WriteFile(filepath.Join(d, "information"), []byte(c), 0o600))
	}
	must.Equal(t, must.Get(dir.Cards(proc))(t), []Card{
		{Model: "NVIDIA TITAN Xp", UUID: "GPU-bbb", Minor: 4},
		{Model: "TITAN Xp", UUID: "GPU-aaa", Minor: 1, NVMLIndex: 1},
		{Model: "TITAN Xp", Minor: 2, NVMLIndex: 2, Lost: true},
	})
	written := []Card{{UUID: "GPU-ccc"}}
	must.OK(t, dir.WriteCards(written))
	must.Equal(t, must.Get(dir.Cards(proc))(t), written)
	must.OK(t, os.WriteFile(dir.path(cardsFile), []byte(`[{"index":`), 0o600))
	half, err := dir.Cards(t.TempDir())
	says(t, err, "JSON")
	must.Equal(t, half, nil)
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
		if cpu, mib := HostUse(root, &JobFile{JobID: 7, SLUID: id}); cpu != c.cpu || mib != c.mib {
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
		// A user who is logged in is in no job, however their groups are named.
		login := append([]byte("0::/user.slice/user-1000.slice/"), bytes.ReplaceAll(groups, []byte("\n"), nil)...)
		if got, id := InGroup(login); got != 0 || id != "" {
			t.Errorf("%d %q", got, id)
		}
		// What a job makes below its own group changes nothing.
		if got, id := InGroup(append([]byte("0::/system.slice/slurmstepd.scope/job_7/"), groups...)); got != 7 || id != "" {
			t.Errorf("%d %q", got, id)
		}
	})
}

func FuzzFromEnv(f *testing.F) {
	f.Add("7", "0", "a", "1")
	f.Fuzz(func(t *testing.T, id, gpus, text, restart string) {
		get := env("SLURM_JOB_ID", id, "SLURM_JOB_GPUS", gpus, "SLURM_JOB_COMMENT", text, "SLURM_JOB_USER", text,
			"SLURMD_NODENAME", text, "SLURM_JOB_SLUID", text, "SLURM_JOB_RESTART_COUNT", restart)
		j, err := FromEnv(get, time.Unix(1, 0))
		if err != nil {
			return
		}
		if j.JobID <= 0 || len(j.GPUs) == 0 || len(j.GPUs) > 400 || j.SLUID != "" && !sluid().MatchString(j.SLUID) ||
			len(j.Comment) > 1024 || !utf8.ValidString(j.Comment+j.User+j.Node) || strings.ContainsAny(j.Comment, "\n\x00\x1b") {
			t.Errorf("%+v", j)
		}
	})
}

// A folder that is one user's to look into is nobody else's, and stays root's.
func TestAFolderIsOneUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root: it looks as other users")
	}
	top := must.Get(os.MkdirTemp("/run", "slurmbridge-acl-"))(t)
	defer os.RemoveAll(top)
	dir := filepath.Join(top, "pipe")
	must.OK(t, os.Chmod(top, 0o755), os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "control"), nil, 0o666))
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
	must.Equal(t, [2]bool{as(ann, "ls", dir), as(bob, "ls", dir)}, [2]bool{false, true}, "the next user's folder")
	must.Equal(t, must.Get(os.Stat(dir))(t).Sys().(*syscall.Stat_t).Uid, 0, "owner")
	says(t, onlyFor(filepath.Join(top, "none"), ann), "no such file")
}

// podman returns what runs the simulated GPU's program in a real container with a root folder of its own, which has the
// GPU and nothing else of the node.
func podman(t *testing.T, b *bench) func(env []string, options, args []string) *exec.Cmd {
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
	global := []string{
		"--root", filepath.Join(storage, "root"), "--runroot", filepath.Join(storage, "run"), "--storage-driver=vfs",
		"--cgroup-manager=cgroupfs",
	}
	if runc, err := exec.LookPath("runc"); err == nil {
		global = append(global, "--runtime", runc) // crun refuses control groups of both versions at once
	}
	in := func(env, options, args []string) *exec.Cmd {
		cmd := exec.Command(program, slices.Concat(global, []string{
			"run", "--rm", "--network=host", "--pid=host", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024",
			"--volume", b.state + ":/gpu", "--env", "GPUSIM_STATE=/gpu",
		}, options, []string{"--rootfs", root, "/bin/gpusim"}, args)...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + storage}, env...)
		return cmd
	}
	if out, err := in(nil, nil, []string{"--help"}).CombinedOutput(); err != nil {
		t.Skipf("podman can't run a container here: %v: %s", err, out)
	}
	return in
}

// A sharer in a container reaches its GPU's MPS daemon with what the users' page tells users of Docker and Podman to
// add, and is held to its limit there; without it the job computes, and without MPS.
func TestSharerInAContainer(t *testing.T) {
	h, b := node(t, "v100", 20)
	in := podman(t, b)
	root := env("SLURM_JOB_UID", "0")
	b.uid = 0
	must.OK(t, h.Prolog(t.Context(), root), h.handOut(0, &JobFile{JobID: 7, MPS: true, MemLimitMiB: 20480}))
	vars := must.Get(b.vars(t, "7"))(t)
	page := string(must.Get(os.ReadFile("../contrib/doc/users.md"))(t))
	_, line, _ := strings.Cut(page, "\n    --ipc=host")
	line, _, _ = strings.Cut("--ipc=host"+line, "\n\n")
	const folder = "/run/slurmbridge:/run/slurmbridge"
	must.Equal(t, strings.Count(line, folder), 1, "the folder of the hooks is passed: %q", line)
	line = strings.Replace(line, folder, string(h.Dir)+":"+string(h.Dir), 1) // theirs in this test
	for _, c := range []struct {
		name, options string
		memMiB        string // of 40960, and its limit is 20480
		runs, mps     bool
	}{
		{"as the page says", line, "1000", true, true},
		{"as it is", "", "1000", true, false},
		{"beyond its limit", line, "30000", false, true},
	} {
		args := []string{"run", "vgg16", "--duration-scale", "0.02", "--mem-mib", c.memMiB}
		a := b.start(t, in(vars, strings.Fields(c.options), args))
		status, mps := a.end()
		must.Equal(t, [2]bool{status == 0, mps}, [2]bool{c.runs, c.mps}, "%s: %s", c.name, &a.stderr)
		must.Equal(t, c.runs || strings.Contains(a.stderr.String(), "memory"), true, "%s: %s", c.name, &a.stderr)
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
		j := &JobFile{JobID: id, GPUs: []int{0}, Start: time.Now()}
		must.OK(t, d.Begin(j))
		done := make(chan error)
		go func() { _, err := d.End(id, time.Now()); done <- err }()
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

// Where the disk takes nothing more, a job that ends still leaves its file among the ended ones, with its end.
func TestAJobEndsOnAFullDisk(t *testing.T) {
	d := Dir(t.TempDir())
	if err := unix.Mount("none", string(d), "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	t.Cleanup(func() { must.OK(t, unix.Unmount(string(d), unix.MNT_DETACH)) })
	j := &JobFile{JobID: 7, GPUs: []int{0}, Start: time.Now()}
	must.OK(t, d.Begin(j))
	must.Is(t, os.WriteFile(d.path("filler"), make([]byte, 64<<10), 0o600), syscall.ENOSPC)
	must.Is(t, d.Begin(&JobFile{JobID: 8, GPUs: []int{0}}), syscall.ENOSPC, "another job")
	end := j.Start.Add(time.Minute)
	must.Get(d.End(7, end))(t)
	ended := must.Get(List(d.Ended()))(t)
	must.Equal(t, len(ended), 1)
	must.Equal(t, ended[0].End.Equal(end), true, ended[0].End)
}

// What a program has printed is there when it ends, whoever keeps its output open.
func TestOutputThatAnotherProcessKeepsOpen(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	t.Cleanup(func() {
		for _, word := range strings.Fields(string(must.Get(os.ReadFile(pids))(t))) {
			must.OK(t, syscall.Kill(must.Get(strconv.Atoi(word))(t), syscall.SIGKILL))
		}
	})
	program := filepath.Join(t.TempDir(), controlName)
	text := "#!/bin/sh\nsleep 1000 &\necho $! >>" + pids + "\necho an answer\n"
	must.OK(t, os.WriteFile(program, []byte(text), 0o755))
	m := &MPS{Dir: Dir(t.TempDir()), Control: program}
	must.Equal(t, must.Get(m.command(t.Context(), 0, "a question"))(t), "an answer\n")
	must.Equal(t, string(must.Get(Child(time.Minute, program))(t)), "an answer\n")
}

// called is a program of a name that sleeps.
func called(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.Symlink(must.Get(exec.LookPath("sleep"))(t), path))
	return path
}

// A daemon that was told to quit and says yes has a moment to be gone, and isn't killed.
func TestDaemonThatIsJustEnding(t *testing.T) {
	m := &MPS{Dir: Dir(t.TempDir()), Control: filepath.Join(t.TempDir(), "control"), Answer: time.Minute}
	daemon := exec.Command(called(t, controlName), "1000")
	daemon.Args[0], daemon.Env = controlName, m.environ(0)
	must.OK(t, os.MkdirAll(m.Pipe(0), 0o755), daemon.Start())
	t.Cleanup(func() { _ = daemon.Process.Kill() })
	must.OK(t, os.WriteFile(m.Control, fmt.Appendf(nil, "#!/bin/sh\n(sleep 0.1; kill %d) >/dev/null 2>&1 &\n",
		daemon.Process.Pid), 0o700))
	until(t, "the daemon", func() bool { return len(m.running(0, controlName)) == 1 })
	must.OK(t, m.Release(t.Context(), 0))
	says(t, daemon.Wait(), "terminated")
	_, err := os.Stat(m.Pipe(0))
	says(t, err, "no such file")
}

// Where the file system can't give back a part of a file, a long log begins anew. The agent would otherwise complain
// every ten seconds, and the log take all the room there is.
func TestLogsWhereNoPartCanBeGivenBack(t *testing.T) {
	dir := Dir(t.TempDir())
	if err := syscall.Mount("none", string(dir), "ramfs", 0, ""); err != nil {
		t.Skip("can't mount: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(string(dir), 0) })
	m := &MPS{Dir: dir}
	must.OK(t, os.MkdirAll(m.log(0), 0o755))
	log := must.Get(os.OpenFile(filepath.Join(m.log(0), controlLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	defer log.Close()
	must.Get(log.Write(bytes.Repeat([]byte("a line of a connection\n"), mostLog/10)))(t)
	_, read := m.readLog(0, controlLog, 0)
	must.OK(t, dir.BoundLogs())
	must.Equal(t, must.Get(log.Stat())(t).Size(), 0, "bytes are left")
	must.Get(log.WriteString("encountered a fatal exception\n"))(t)
	text, _ := m.readLog(0, controlLog, read)
	must.Equal(t, text, "encountered a fatal exception\n", "what comes afterwards is read")
}

// The controller may take a part of a hook's deadline to answer, whatever that is.
func TestTheDeadlineBoundsTheQuestion(t *testing.T) {
	s := Settings{Controller: "http://head:9797", Memory: "auto", RunDir: t.TempDir()}
	for _, deadline := range []time.Duration{5 * time.Second, time.Minute} {
		must.Equal(t, s.Hook(env(), deadline).Controller.Timeout, deadline/5)
	}
}

// A task of a heterogeneous job finds its component by its control group, or by its step's name above it.
func TestComponentOfATask(t *testing.T) {
	proc := t.TempDir()
	for pid, files := range map[int]map[string]string{
		10: {"stat": "10 (slurmstepd) S 1 ", "cmdline": "slurmstepd: [8.0]\x00"},
		11: {"stat": "11 (sh) S 10 ", "cmdline": "sh\x00", "cgroup": "0::/user.slice\n"},
		12: {"stat": "12 (hook) S 11 ", "cmdline": "hook\x00"},
		13: {"stat": "13 (hook) S 12 ", "cgroup": "0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n"},
		14: {"stat": "14 (hook) S 1 ", "cmdline": "slurmstepd: [8.0]\x00"},
	} {
		must.OK(t, os.MkdirAll(procDir(proc, pid), 0o755))
		for name, text := range files {
			must.OK(t, os.WriteFile(filepath.Join(procDir(proc, pid), name), []byte(text), 0o600))
		}
	}
	for pid, want := range map[int]int64{12: 8, 13: 9, 14: 0, 15: 0} {
		must.Equal(t, componentOf(proc, pid), want, "process %d", pid)
	}
}
