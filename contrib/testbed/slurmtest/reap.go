package slurmtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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
	defer os.Remove(f.Name())
	if err := lock(f); err != nil {
		return fmt.Errorf("claim cluster folder: %w", err)
	}
	switch err := os.Link(f.Name(), c.Path(owner)); {
	case err == nil:
		c.lock = f
		return nil
	case !errors.Is(err, os.ErrExist):
		_ = f.Close()
		return fmt.Errorf("claim cluster folder: %w", err)
	}
	_ = f.Close()
	// An earlier cluster was in this folder.
	// Its lock may outlive it for a moment: a process that was being started somewhere
	// else in this one holds all files until it runs.
	for try := 0; ; try++ {
		if f, err = os.OpenFile(c.Path(owner), os.O_RDWR, 0); err != nil {
			return fmt.Errorf("claim cluster folder: %w", err)
		}
		if err = lock(f); err == nil {
			break
		}
		if try == 10 {
			return fmt.Errorf("claim %s: %w", c.Dir, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.lock = f
	return kill(c.Dir)
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
	end := time.Now().Add(10 * time.Second)
	for {
		pids, err := killOnce(dir)
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v of %s don't end", pids, dir)
		}
		time.Sleep(10 * time.Millisecond)
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

// members lists the processes of the cluster in dir: processes with its slurm.conf in their
// environment (daemons, hooks, jobs), and, among processes without a terminal (so that no user's
// shell is one), any with a path below dir in its environment, as its working directory or open:
// jobs that cleared their environment, daemons that hooks left. Their children belong too. This
// process and its ancestors don't.
func members(dir string) ([]int, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	above := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !above[pid]; {
		above[pid] = true
		pid, _ = parent(pid)
	}
	var out, rest []int
	ours := map[int]bool{}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		switch {
		case err != nil || above[pid] || zombie(pid):
		case belongs(pid, dir):
			ours[pid] = true
			out = append(out, pid)
		default:
			rest = append(rest, pid)
		}
	}
	for more := len(out) > 0; more; {
		more = false
		for _, pid := range rest {
			if up, _ := parent(pid); ours[up] && !ours[pid] {
				ours[pid], more = true, true
				out = append(out, pid)
			}
		}
	}
	return out, nil
}

func belongs(pid int, dir string) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	env, err := os.ReadFile(proc + "/environ")
	if err != nil {
		return false
	}
	below := dir + "/"
	named := false
	for v := range bytes.SplitSeq(env, []byte{0}) {
		key, value, _ := strings.Cut(string(v), "=")
		switch key {
		case "SLURM_CONF":
			if value == below+"slurm.conf" {
				return true
			}
		case "PWD", "OLDPWD":
		default:
			named = named || strings.HasPrefix(value, below)
		}
	}
	if _, tty := parent(pid); tty {
		return false
	}
	if named {
		return true
	}
	links, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return false
	}
	paths := []string{proc + "/cwd", proc + "/exe"}
	for _, l := range links {
		paths = append(paths, proc+"/fd/"+l.Name())
	}
	for _, path := range paths {
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to+"/", below) {
			return true
		}
	}
	return false
}

// stat is what follows the name in /proc/PID/stat: state, parent, group, session,
// terminal, …
func stat(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// parent is a process's parent, and whether it has a terminal.
func parent(pid int) (ppid int, tty bool) {
	f := stat(pid)
	if len(f) < 5 {
		return 0, false
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		return 0, false
	}
	return ppid, f[4] != "0"
}

func zombie(pid int) bool {
	f := stat(pid)
	return len(f) == 0 || f[0] == "Z" || f[0] == "X"
}

// Processes lists the processes of the cluster that run one of the programs, by its name
// and the cluster's folder in their arguments or environment.
func (c *Cluster) Processes(programs ...string) ([]int, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || zombie(pid) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		program, _, _ := strings.Cut(string(line), "\x00")
		if !slices.Contains(programs, filepath.Base(program)) {
			continue
		}
		vars, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if strings.Contains(string(line)+string(vars), c.Dir+"/") {
			out = append(out, pid)
		}
	}
	return out, nil
}
