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

const (
	// prefix begins the names of the folders that Start makes.
	prefix = "slurmtest-"
	// owner is a file in every cluster's folder, locked by the process that
	// started the cluster while it lives.
	owner = "owner"
)

// errInUse says that a cluster's process lives.
var errInUse = errors.New("a running cluster's folder")

// claim marks the folder as this process's. The mark is locked before it gets its
// name, so that no other test's sweep finds one that isn't.
func (c *Cluster) claim() error {
	f, err := os.CreateTemp(c.Dir, owner)
	if err != nil {
		return fmt.Errorf("claim cluster folder: %w", err)
	}
	c.lock = f
	if err := errors.Join(lock(f), os.Rename(f.Name(), c.Path(owner))); err != nil {
		return fmt.Errorf("claim cluster folder: %w", err)
	}
	return nil
}

// lock locks a file, or closes it and returns errInUse.
func lock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return errInUse
	}
	return nil
}

// sweep removes the folders of clusters after their process was killed.
func sweep() {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		_ = Reap(dir) // one that is in use, or just being made, stays
	}
}

// Reap ends what still runs of a cluster after its process is gone, and removes its folder. A
// folder that is no cluster's, or a running cluster's, is an error.
func Reap(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, owner), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("reap %s: no cluster's folder: %w", dir, err)
	}
	if err := lock(f); err != nil {
		return fmt.Errorf("reap %s: %w", dir, err)
	}
	defer f.Close()
	if err := kill(dir); err != nil {
		return fmt.Errorf("reap %s: %w", dir, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("reap %s: %w", dir, err)
	}
	return nil
}

// kill ends every process that belongs to the cluster in dir, and returns when
// they are gone.
func kill(dir string) error {
	for end := time.Now().Add(10 * time.Second); ; {
		pids, err := killOnce(dir)
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		if len(pids) == 0 {
			return nil
		}
		// A look at these is cheap, and one at all processes is not.
		for again := true; again; again = slices.ContainsFunc(pids, alive) {
			if time.Now().After(end) {
				return fmt.Errorf("processes %v of %s don't end", pids, dir)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// alive reports whether a process is neither gone nor a zombie.
func alive(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	st, err := p.Stat()
	return err == nil && st.State != "Z" && st.State != "X"
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

// members lists the processes of the cluster in dir: processes with its slurm.conf in their
// environment (daemons, hooks, jobs), and, among processes without a terminal (so that no user's
// shell is one), any with a path below dir in its environment, as its working directory or open:
// jobs that cleared their environment, daemons that hooks left. Their children belong too. This
// process and its ancestors don't.
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
	for more := len(ours) > 0; more; {
		more = false
		for pid, st := range stats {
			if ours[st.PPID] && !ours[pid] && !above[pid] {
				ours[pid], more = true, true
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
