package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/slurmbridge/slurmbridge/prolog"
)

// fakeProcess is a process in a test's /proc.
type fakeProcess struct {
	parent                  int
	comm, line, exe, groups string
	uid                     int
}

// A process is its control group's job's, by number or by SLUID. Where Slurm uses none it
// is its step's, however deep; only Slurm makes a step.
func TestOwnerByStep(t *testing.T) {
	a := &Agent{Proc: t.TempDir()}
	me := os.Geteuid()
	step := func(line string) fakeProcess {
		return fakeProcess{parent: 1, comm: "slurmstepd", line: line, exe: "/usr/sbin/slurmstepd", uid: me}
	}
	a.jobs = map[run]*tracked{{ID: 18}: {job: &prolog.Job{JobID: 18, SLUID: "sEKNKTV3WPV500"}}, {ID: 19}: {job: &prolog.Job{JobID: 19}}}
	upgraded, renamed, forged := step("slurmstepd: [12.extern]"), step("slurmstepd: [13.0]"), step("slurmstepd: [14.0]")
	debian := step("slurmstepd: [17.batch]")
	debian.exe += "-wlm"
	upgraded.exe += " (deleted)"
	renamed.exe = "/home/ann/sleep"
	forged.uid = 4242
	processes := map[int]fakeProcess{
		10: step("slurmstepd: [11.batch]"), 11: {parent: 10, comm: "bash) S 99", line: "bash"}, 12: {parent: 11, comm: "python", line: "python"},
		20: upgraded, 21: {parent: 20, comm: "app", line: "app"},
		30: renamed, 31: {parent: 30, comm: "app", line: "app"},
		40: forged, 41: {parent: 40, comm: "app", line: "app"},
		50: {parent: 1, comm: "nvidia-cuda-mps", line: "nvidia-cuda-mps-server"},
		51: {parent: 11, comm: "nvidia-cuda-mps", line: "called so"},
		60: step("slurmstepd: [15.0]"), 61: {parent: 60, groups: "0::/system.slice/slurmstepd.scope/job_16/step_0\n"},
		62: {parent: 60, groups: "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n"},
		63: {parent: 1, groups: "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_0/job_99\n"},
		64: {parent: 60, groups: "0::/system.slice/slurmstepd.scope/s0000000000000/step_0\n"}, // no job's that is known
		65: {parent: 1, groups: "0::/user.slice/sEKNKTV3WPV50\n"},
		66: debian, 67: {parent: 66},
		70: {parent: 71, line: "a"}, 71: {parent: 70, line: "b"}, // no tree, as numbers are used anew
		80: step("slurmstepd: [99999999999999999999.0]"), 81: {parent: 80},
		90: {parent: 4711, line: "its parent is gone"},
	}
	for pid, p := range processes {
		if p.uid != 0 && p.uid != me && me != 0 {
			continue
		}
		dir := filepath.Join(a.Proc, strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		stat := strconv.Itoa(pid) + " (" + p.comm + ") S " + strconv.Itoa(p.parent) + " 1 1 0\n"
		for name, text := range map[string]string{"stat": stat, "comm": p.comm + "\n", "cmdline": p.line + "\x00-x\x00", "cgroup": p.groups} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if p.exe != "" {
			if err := os.Symlink(p.exe, filepath.Join(dir, "exe")); err != nil {
				t.Fatal(err)
			}
		}
		if p.uid == 4242 {
			if err := os.Chown(dir, p.uid, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for pid, want := range map[int]int64{11: 11, 12: 11, 21: 12, 31: 0, 41: 0, 51: 11, 61: 16, 62: 18, 63: 18, 64: 15, 65: 0, 67: 17, 71: 0, 81: 0, 90: 0, 4711: 0} {
		if job, server := a.owner(pid); job != want || server {
			t.Errorf("process %d is job %d's (a server: %v), want %d", pid, job, server, want)
		}
	}
	if job, server := a.owner(50); job != 0 || !server {
		t.Errorf("the MPS server is %d's, %v", job, server)
	}
}
