package prolog

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Job 7 has ended while job 8 goes on: 7's client of their MPS server is ended, its work first, where the driver's
// daemon can do that. Neither job 8's client is touched nor a process of job 7's that doesn't compute.
func TestAClientOutlivesItsJob(t *testing.T) {
	for _, driver := range []string{"470", "550"} {
		t.Run(driver, func(t *testing.T) {
			h, b := node(t, "a100", 1, "--driver", driver)
			left := b.shared(t)
			stays := b.run(t, "8")
			until(t, "two clients", func() bool { return h.clientsOf(t) == 2 })
			bystander := exec.Command("sleep", "1000")
			bystander.Env, bystander.SysProcAttr = left.cmd.Env, left.cmd.SysProcAttr
			must.OK(t, bystander.Start())
			t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
			asked := h.asked(t)
			pid := left.cmd.Process.Pid
			says(t, h.Epilog(t.Context(), env()), fmt.Sprintf("MPS clients that had outlived their job were ended: processes %d",
				pid))
			_, _ = left.end()
			want := fmt.Sprintf("terminate_client %d %d\n", h.Dir.Server(0).PID, pid)
			must.Equal(t, strings.Contains(asked(), want), true, "it asks: %s", want)
			for name, p := range map[string]*os.Process{
				"job 8's client":       stays.cmd.Process,
				"what doesn't compute": bystander.Process,
			} {
				must.Equal(t, started("", p.Pid) != 0, true, "%s is there", name)
			}
			must.Equal(t, read(t, h.Dir.running(8)).MPSFault.IsZero(), true, "job 8 is no victim")
		})
	}
}

// locked is a file of a process whose memory is locked: whoever reads it waits.
const locked = "locked"

// processIn makes a process under a /proc, of such files.
func processIn(t *testing.T, proc string, pid int, files map[string]string) {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	must.OK(t, os.Mkdir(dir, 0o755))
	for name, text := range files {
		path := filepath.Join(dir, name)
		if text == locked {
			must.OK(t, syscall.Mkfifo(path, 0o600))
			continue
		}
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

// Which processes a job has left behind: its user's that its task prolog has named it to, in no other job.
func TestProcessesThatOutliveTheirJob(t *testing.T) {
	h := &Hook{Proc: t.TempDir()}
	const scope = "0::/system.slice/slurmstepd.scope/"
	for pid, p := range map[int]struct{ env, groups, uid string }{
		11: {env: JobEnv + "=7"},
		12: {env: "A=b\x00" + JobEnv + "=7\x00C=d", groups: scope + "job_7/step_0/user/task_0\n"},
		13: {env: JobEnv + "=7", groups: scope + "sEKNKTV3WPV500/step_0/user/task_0\n"},
		20: {env: JobEnv + "=77"},
		21: {env: "A=" + JobEnv + "=7"},
		22: {env: locked, uid: "1001"},
		23: {env: JobEnv + "=7", groups: scope + "job_9/step_0/user/task_0\n"}, // submitted from job 7
		24: {env: JobEnv + "=7", groups: scope + "s0000000000000/step_0\n"},
		25: {},
	} {
		uid := cmp.Or(p.uid, "1000")
		processIn(t, h.Proc, pid, map[string]string{
			"environ": p.env, "cgroup": p.groups, "status": "Name:\tx\nUid:\t" + uid + "\t" + uid + "\n",
			"stat": fmt.Sprintf("%d (x) S 1 1 1 0\n", pid),
		})
	}
	must.Equal(t, h.outlived(&JobFile{JobID: 7, UID: 1000, SLUID: "sEKNKTV3WPV500"}), []int{11, 12, 13})
}

// A GPU's daemon and servers are found among processes that are called alike, and those whose memory is locked, where
// whoever reads a command line waits.
func TestProcessesOfMPS(t *testing.T) {
	m := &MPS{Dir: Dir(t.TempDir()), Proc: t.TempDir()}
	must.OK(t, os.MkdirAll(m.Dir.gpu(0), 0o755), putJSON(m.Dir.gpu(0, userFile), 1000, 0o644))
	root := strconv.Itoa(os.Geteuid())
	for pid, p := range map[int]struct{ comm, program, gpu, uid string }{
		11: {shortName, controlName, "0", root},
		12: {shortName, "/usr/bin/" + serverName, "0", "1000"}, // the server is its user's
		20: {shortName, controlName, "1", root},
		21: {shortName, controlName, "0", "1000"}, // a user's own
		22: {"python3", locked, "0", "1000"},
		23: {shortName, locked, "0", "1001"}, // a user's who isn't served
	} {
		processIn(t, m.Proc, pid, map[string]string{
			"comm": p.comm + "\n", "status": "Uid:\t" + p.uid + "\t" + p.uid + "\n", "cmdline": p.program,
			"environ": "A=b\x00CUDA_MPS_PIPE_DIRECTORY=" + m.Dir.path("mps/gpu"+p.gpu+"/pipe") + "\x00",
		})
	}
	must.Equal(t, m.running(0, controlName, serverName), []int{11, 12})
}
