package prolog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MPS runs one control daemon for each shared GPU: one daemon for several GPUs
// would spread a fault of one to all of them.
type MPS struct {
	Dir Dir
	// Control is the path of nvidia-cuda-mps-control.
	Control string
	// Cards are the GPUs that are known; others are named to CUDA by their index.
	Cards []Card
	// Multiuser starts daemons with -multiuser-server (Volta and later, recent
	// drivers): one server for all users. Otherwise the job's user's own server is
	// started ahead of the first client.
	Multiuser bool
	// Env is added to the daemon's environment.
	Env []string
	// Quit is how long a daemon has to end by itself. Default 1 s.
	Quit time.Duration
	// Answer is how long a daemon may take to answer before it counts as hung, and
	// half of what it may take to start a server. Default 1.5 s.
	Answer time.Duration
	// Proc is where processes are looked for; "" = /proc.
	Proc string
}

func (m *MPS) answer() time.Duration { return cmp.Or(m.Answer, 1500*time.Millisecond) }

// ending is how long a daemon that has acknowledged quit may take to end.
const ending = 500 * time.Millisecond

// Pipe is the GPU's CUDA_MPS_PIPE_DIRECTORY.
func (m *MPS) Pipe(gpu int) string { return filepath.Join(m.Dir.gpu(gpu), "pipe") }

func (m *MPS) log(gpu int) string { return filepath.Join(m.Dir.gpu(gpu), "log") }

// Ensure makes sure that the GPU's daemon runs and answers, for a client of the
// given user. The caller holds the GPU's lock. A daemon that doesn't answer is
// replaced, but not from under jobs in use of it: on a busy node one may be slow,
// and without it they would fail.
//
// ahead: a server is there for the user before the first client needs one. Where the client may never come none is to: in
// the mode EXCLUSIVE_PROCESS a server keeps every other process from the GPU.
func (m *MPS) Ensure(ctx context.Context, gpu int, uid uint32, inUse, ahead bool) error {
	for !m.answers(ctx, gpu) {
		if inUse && m.present(gpu) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("gpu %d: the MPS daemon does not answer, and is left to the jobs that use it: %w", gpu, ctx.Err())
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if err := m.start(ctx, gpu, uid); err != nil {
			return fmt.Errorf("gpu %d: %w", gpu, err)
		}
	}
	if m.Multiuser {
		return nil
	}
	// The daemon may have been another user's before.
	if err := m.letIn(gpu, uid); err != nil {
		return fmt.Errorf("gpu %d: %w", gpu, err)
	}
	if !ahead {
		return nil
	}
	// The server is ready when the job's first process needs it. A driver without
	// persistence mode initialises the GPU for it, which takes seconds.
	ctx, cancel := context.WithTimeout(ctx, 2*m.answer())
	defer cancel()
	said, err := m.command(ctx, gpu, fmt.Sprintf("start_server -uid %d", uid))
	for err == nil {
		var list string
		if list, err = m.command(ctx, gpu, "get_server_list"); strings.TrimSpace(list) != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			err = errors.New("the daemon has none")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("gpu %d: start server of user %d: %w: %.200s", gpu, uid, err, strings.TrimSpace(said))
}

// letIn gives access to a server's folders to root and to the user that the server serves.
func (m *MPS) letIn(gpu int, uid uint32) error {
	if m.Multiuser {
		return nil
	}
	return errors.Join(onlyFor(m.Pipe(gpu), uid), onlyFor(m.log(gpu), uid))
}

func (m *MPS) start(ctx context.Context, gpu int, uid uint32) error {
	c, _ := card(m.Cards, gpu)
	if c.Lost {
		return errors.New("the driver has lost it: no MPS daemon for it")
	}
	// A daemon that hangs would hold the pipe directory; what a dead one left would
	// keep a new one from starting. Servers stay: jobs may be computing on them.
	m.kill(gpu, controlName)
	if err := os.RemoveAll(m.Pipe(gpu)); err != nil {
		return err
	}
	if err := ignoreMissing(os.Remove(m.Dir.serverFile(gpu))); err != nil {
		return err
	}
	// The last daemon's log may say why it went.
	old := m.log(gpu) + ".old"
	if err := errors.Join(os.RemoveAll(old), ignoreMissing(os.Rename(m.log(gpu), old))); err != nil {
		return err
	}
	// Clients connect through the pipe directory: of any user, or of the one that is served.
	for _, d := range []string{m.Pipe(gpu), m.log(gpu)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := m.letIn(gpu, uid); err != nil {
		return err
	}
	args := []string{"-d"}
	if m.Multiuser {
		args = append(args, "-multiuser-server")
	}
	cmd := exec.CommandContext(ctx, m.Control, args...)
	cmd.Env = append(m.environ(gpu), "CUDA_VISIBLE_DEVICES="+cmp.Or(c.UUID, strconv.Itoa(gpu)))
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("start MPS daemon: %w: %.200s", err, strings.TrimSpace(string(out)))
	}
	for !m.answers(ctx, gpu) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the MPS daemon does not answer: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// detach gives a command a session of its own: what hasn't one is killed when the
// prolog ends. At the deadline its whole group is killed; a descriptor that is
// kept open longer doesn't hold the job up. A hook that is killed takes the
// command along, though not the daemon that it has started.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 200 * time.Millisecond
	cmd.Dir = "/"
}

func (m *MPS) environ(gpu int) []string {
	return append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + m.Pipe(gpu), "CUDA_MPS_LOG_DIRECTORY=" + m.log(gpu),
	}, m.Env...)
}

// command gives the daemon one command and returns its answer.
func (m *MPS) command(ctx context.Context, gpu int, line string) (string, error) {
	cmd := exec.CommandContext(ctx, m.Control)
	cmd.Env = m.environ(gpu)
	cmd.Stdin = strings.NewReader(line + "\n")
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %.200s", line, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// question gives the daemon one command that it is to answer soon.
func (m *MPS) question(ctx context.Context, gpu int, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, m.answer())
	defer cancel()
	out, err := m.command(ctx, gpu, line)
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("the MPS daemon did not answer %q: %w", line, ctx.Err())
	}
	return out, err
}

// answers reports whether a daemon answers in the GPU's pipe directory.
func (m *MPS) answers(ctx context.Context, gpu int) bool {
	if !m.present(gpu) {
		return false
	}
	_, err := m.question(ctx, gpu, "get_server_list")
	return err == nil
}

// present reports whether a daemon has left the signs that it runs: its control
// socket, and where its pid can be read the process. It sends no query and may be
// called as any user.
func (m *MPS) present(gpu int) bool {
	if _, err := os.Stat(filepath.Join(m.Pipe(gpu), "control")); err != nil {
		return false
	}
	pid, err := os.ReadFile(filepath.Join(m.Pipe(gpu), controlName+".pid"))
	if err != nil {
		return true
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil || n <= 0 {
		return true
	}
	// The number of one that was killed, or of before a restart, may be another's now.
	name := program(m.Proc, n)
	return !errors.Is(syscall.Kill(n, 0), syscall.ESRCH) && (name == "" || name == controlName)
}

// Release ends the GPU's daemon. The caller holds the GPU's lock and has seen that
// no job shares the GPU any more.
func (m *MPS) Release(ctx context.Context, gpu int) error {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return nil // there is none
	}
	quit := cmp.Or(m.Quit, time.Second)
	all := m.running(gpu, controlName, serverName)
	bounded, cancel := context.WithTimeout(ctx, quit+m.answer())
	_, err := m.command(bounded, gpu, fmt.Sprintf("quit -t %d", int(max(1, quit.Seconds()))))
	if err == nil {
		// It has acknowledged, and may take a moment to end.
		runs := func(pid int) bool { return slices.Contains([]string{controlName, serverName}, program(m.Proc, pid)) }
		for ends := time.Now().Add(ending); slices.ContainsFunc(all, runs) && time.Now().Before(ends) && bounded.Err() == nil; {
			time.Sleep(20 * time.Millisecond)
		}
	}
	cancel()
	// What is left hangs, or has lost its daemon, and is of no use.
	n := m.kill(gpu, controlName, serverName)
	if rerr := errors.Join(os.RemoveAll(m.Pipe(gpu)), ignoreMissing(os.Remove(m.Dir.serverFile(gpu))), ignoreMissing(os.Remove(m.Dir.userFile(gpu)))); rerr != nil {
		return fmt.Errorf("gpu %d: %w", gpu, rerr)
	}
	switch {
	case n > 0 && err != nil:
		return fmt.Errorf("gpu %d: the MPS daemon did not end by itself, %d of its processes were killed: %w", gpu, n, err)
	case n > 0:
		return fmt.Errorf("gpu %d: the MPS daemon did not end by itself, %d of its processes were killed", gpu, n)
	}
	return nil
}
