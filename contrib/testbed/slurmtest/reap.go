package slurmtest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// prefix begins the names of the folders that Start makes.
const prefix = "testslurm-"

// errInUse says that a cluster's process lives.
var errInUse = errors.New("a running cluster's folder")

// claim locks a cluster's folder while this process lives.
func claim(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		return nil, errInUse
	}
	return f, nil
}

// sweep removes the folders of clusters after their process was killed.
func sweep() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range left {
		_ = reap(dir) // one that is in use, or just being made, stays
	}
}

// reap ends what still runs of a cluster after its process is gone, and removes its folder. A folder that is no
// cluster's, or a running cluster's, is an error.
func reap(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "state")); err != nil { // which is made once the folder is claimed
		return fmt.Errorf("reap %s: no cluster's folder: %w", dir, err)
	}
	f, err := claim(dir)
	if err != nil {
		return fmt.Errorf("reap %s: %w", dir, err)
	}
	defer f.Close()
	if err := kill(dir); err != nil {
		return fmt.Errorf("reap %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// kill ends every process that belongs to the cluster in dir, and returns when they are gone.
func kill(dir string) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		pids, err := killOnce(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v of %s don't end", pids, dir)
		}
	}
}

// killOnce kills the processes that are there, and returns them.
func killOnce(dir string) ([]int, error) {
	// A child that this process has just forked has this process's files open, including the
	// cluster's, and doesn't belong to the cluster.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	pids, err := members(dir)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return pids, err
}

// members lists the processes of the cluster in dir: processes with its slurm.conf in their environment (daemons,
// hooks, jobs), and, among processes without a terminal (so that no user's shell is one), any with a path below dir in
// its environment, as its working directory or open: jobs that cleared their environment, daemons that hooks left.
// Their children belong too. This process and its ancestors don't.
func members(dir string) (out []int, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	stats := map[int]procfs.ProcStat{}
	for _, p := range all {
		if st, err := p.Stat(); err == nil && st.State != "Z" && st.State != "X" {
			stats[p.PID] = st
		}
	}
	above := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !above[pid]; pid = stats[pid].PPID {
		above[pid] = true
	}
	ours := map[int]bool{}
	for _, p := range all {
		if st, there := stats[p.PID]; there && !above[p.PID] && belongs(p, st.TTY != 0, dir) {
			ours[p.PID] = true
		}
	}
	for more := len(ours); more > 0; {
		more = 0
		for pid, st := range stats {
			if ours[st.PPID] && !ours[pid] && !above[pid] {
				ours[pid] = true
				more++
			}
		}
	}
	return slices.Sorted(maps.Keys(ours)), nil
}

func belongs(p procfs.Proc, terminal bool, dir string) bool {
	below := dir + "/"
	env, _ := p.Environ() // what can't be read any more has ended
	if own := slices.Contains(env, "SLURM_CONF="+below+"slurm.conf"); own || terminal {
		return own
	}
	for _, v := range env {
		if key, value, _ := strings.Cut(v, "="); key != "PWD" && key != "OLDPWD" && strings.HasPrefix(value, below) {
			return true
		}
	}
	paths, _ := p.FileDescriptorTargets()
	cwd, _ := p.Cwd()
	exe, _ := p.Executable()
	return slices.ContainsFunc(append(paths, cwd, exe),
		func(path string) bool { return strings.HasPrefix(path+"/", below) })
}

// Processes lists the processes of the cluster that run one of the programs, by its name
// and the cluster's folder in their arguments or environment.
func (c *Cluster) Processes(programs ...string) ([]int, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, p := range all {
		line, _ := p.CmdLine()
		if len(line) == 0 || p.PID == os.Getpid() || !slices.Contains(programs, filepath.Base(line[0])) {
			continue
		}
		env, _ := p.Environ()
		if slices.ContainsFunc(append(line, env...), func(s string) bool { return strings.Contains(s, c.Dir+"/") }) {
			out = append(out, p.PID)
		}
	}
	return out, nil
}
