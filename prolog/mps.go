package prolog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	// UUID names GPU i to CUDA; "" = unknown, its index is used.
	UUID func(gpu int) string
	// OneUser: the card serves one user at a time (before Volta), whose server is
	// started ahead of the first client.
	OneUser bool
	// Env is added to the daemon's environment.
	Env []string
	// Quit is how long a daemon has to end by itself. Default 2 s.
	Quit time.Duration
}

// folder is the folder of one GPU's daemon.
func (m *MPS) folder(gpu int) string { return m.Dir.path("mps", "gpu"+strconv.Itoa(gpu)) }

// Pipe is the GPU's CUDA_MPS_PIPE_DIRECTORY.
func (m *MPS) Pipe(gpu int) string { return filepath.Join(m.folder(gpu), "pipe") }

func (m *MPS) log(gpu int) string { return filepath.Join(m.folder(gpu), "log") }

// lock takes the GPU's lock: several hooks run at once.
func (m *MPS) lock(ctx context.Context, gpu int) (release func(), err error) {
	if err := os.MkdirAll(m.folder(gpu), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(m.folder(gpu), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("gpu %d: another hook holds its lock: %w", gpu, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Ensure makes sure that the GPU's daemon runs and answers, for a client of the
// given user.
func (m *MPS) Ensure(ctx context.Context, gpu int, uid uint32) error {
	release, err := m.lock(ctx, gpu)
	if err != nil {
		return err
	}
	defer release()
	if err := m.ensure(ctx, gpu); err != nil {
		return fmt.Errorf("gpu %d: %w", gpu, err)
	}
	if m.OneUser {
		if _, err := m.command(ctx, gpu, fmt.Sprintf("start_server -uid %d", uid)); err != nil {
			return fmt.Errorf("gpu %d: start server: %w", gpu, err)
		}
	}
	return nil
}

func (m *MPS) ensure(ctx context.Context, gpu int) error {
	if m.answers(ctx, gpu) {
		return nil
	}
	// What a dead daemon left must not keep a new one from starting.
	if err := os.RemoveAll(m.Pipe(gpu)); err != nil {
		return err
	}
	// Clients of any user connect through the pipe directory.
	for _, d := range []string{m.Pipe(gpu), m.log(gpu)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	device := strconv.Itoa(gpu)
	if m.UUID != nil {
		if u := m.UUID(gpu); u != "" {
			device = u
		}
	}
	cmd := exec.CommandContext(ctx, m.Control, "-d")
	cmd.Env = append(m.environ(gpu), "CUDA_VISIBLE_DEVICES="+device)
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

// detach gives a command a session of its own: what hasn't one is killed when the
// prolog ends. At the deadline its whole group is killed; a descriptor that is
// kept open longer doesn't hold the job up.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 200 * time.Millisecond
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

// answers reports whether a daemon answers in the GPU's pipe directory.
func (m *MPS) answers(ctx context.Context, gpu int) bool {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := m.command(ctx, gpu, "get_server_list")
	return err == nil
}

// Release ends the GPU's daemon if no job of jobs (those that still run) shares
// the GPU any more.
func (m *MPS) Release(ctx context.Context, gpu int, jobs func() ([]*Job, error)) error {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return nil // there is none
	}
	release, err := m.lock(ctx, gpu)
	if err != nil {
		return err
	}
	defer release()
	// Read under the lock: a prolog may have started meanwhile.
	running, err := jobs()
	if err != nil {
		return err
	}
	for _, j := range running {
		for _, g := range j.GPUs {
			if g == gpu {
				return nil
			}
		}
	}
	quit := m.Quit
	if quit == 0 {
		quit = 2 * time.Second
	}
	_, err = m.command(ctx, gpu, fmt.Sprintf("quit -t %d", int(max(1, quit.Seconds()))))
	if err != nil && m.answers(ctx, gpu) {
		return fmt.Errorf("gpu %d: end MPS daemon: %w", gpu, err)
	}
	if err := os.RemoveAll(m.Pipe(gpu)); err != nil {
		return fmt.Errorf("gpu %d: %w", gpu, err)
	}
	return nil
}

// Syslog is where a hook's troubles go: its own output is Slurm's.
func Syslog(message string) {
	conn, err := net.Dial("unixgram", "/dev/log")
	if err != nil {
		return
	}
	defer conn.Close()
	// <28> is facility daemon, severity warning.
	_, _ = io.WriteString(conn, "<28>slurmbridge-hook: "+message)
}
