package prolog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MPS runs one control daemon for each shared GPU: one daemon for several GPUs
// would spread a fault of one to all of them.
type MPS struct {
	Dir Dir
	// Control is the path of nvidia-cuda-mps-control.
	Control string
	// Cards are the GPUs that are known; others are named to CUDA by their index.
	Cards []Card
	// Multiuser starts daemons with -multiuser-server where the driver knows it (Volta and later, driver 555 and later):
	// one server for all users. Otherwise the job's user's own server is started ahead of the first client.
	Multiuser bool
	// Env is added to the daemon's environment.
	Env []string
	// Answer is how long a daemon may take to answer before it counts as hung, half of what it may take to start a
	// server, and three times what it may take to end.
	Answer time.Duration
	// Proc is where processes are looked for; "" = /proc.
	Proc string
}

// quit is how long a daemon has to end by itself.
const quit = time.Second

// Pipe is the GPU's CUDA_MPS_PIPE_DIRECTORY.
func (m *MPS) Pipe(gpu int) string { return m.Dir.gpu(gpu, "pipe") }

func (m *MPS) log(gpu int) string { return m.Dir.gpu(gpu, "log") }

// Ensure makes sure that the GPU's daemon runs and answers, for a client of the given user. The caller holds the GPU's
// lock. A daemon that doesn't answer is replaced, but not from under jobs in use of it: on a busy node one may be slow,
// and without it they would fail.
//
// ahead: the user's server is started before the first client needs one; serves says whether it takes clients. Where
// the client may never come no server is started: in the mode EXCLUSIVE_PROCESS one keeps every other process from the
// GPU.
func (m *MPS) Ensure(ctx context.Context, gpu int, uid uint32, inUse, ahead bool) error {
	// A client of a daemon for all users that says nothing stops it for all others (555), for as long as it likes.
	patient, cancel := context.WithTimeout(ctx, 2*m.Answer)
	defer cancel()
	for !m.answers(patient, gpu) {
		if inUse && m.present(gpu) {
			select {
			case <-patient.Done():
				return fmt.Errorf("the MPS daemon does not answer, and is left to the jobs that use it: %w", patient.Err())
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if err := m.start(ctx, gpu); err != nil {
			return err
		}
	}
	// The daemon may have been another user's before.
	if err := m.letIn(gpu, uid); err != nil || !ahead || m.multiuser(gpu) {
		return err
	}
	_, err := m.command(ctx, gpu, fmt.Sprintf("start_server -uid %d", uid))
	return err
}

// multiuser reports whether the GPU's daemon serves all users: it was asked to, and its driver knows how.
func (m *MPS) multiuser(gpu int) bool { return m.Multiuser && !m.Dir.oneUser(gpu) }

// letIn gives access to a daemon's folders to root and to the user that is served, or to all users. Before that the
// daemon's files that any user could write to are closed: they would fill the file system that jobs' files are on. No
// client opens them: libcuda (470 to 555) names neither.
func (m *MPS) letIn(gpu int, uid uint32) error {
	var errs []error
	for _, name := range []string{"control_lock", "nvidia-cuda-mps-control.pid"} { // the latter from driver 550 on
		errs = append(errs, ignoreMissing(os.Chmod(filepath.Join(m.Pipe(gpu), name), 0o644)))
	}
	for _, dir := range []string{m.Pipe(gpu), m.log(gpu)} {
		if m.multiuser(gpu) {
			errs = append(errs, os.Chmod(dir, 0o755)) //nolint:gosec // clients of all users
		} else {
			errs = append(errs, onlyFor(dir, uid))
		}
	}
	if !m.multiuser(gpu) && m.Dir.served(gpu) != int64(uid) {
		errs = append(errs, putJSON(m.Dir.gpu(gpu, userFile), uid, 0o644))
	}
	return errors.Join(errs...)
}

func (m *MPS) start(ctx context.Context, gpu int) error {
	c, _ := card(m.Cards, gpu)
	if c.Lost {
		return errors.New("the driver has lost it: no MPS daemon for it")
	}
	// A daemon that hangs would hold the pipe directory; what a dead one left would
	// keep a new one from starting. Servers stay: jobs may be computing on them.
	m.kill(gpu, controlName)
	old := m.log(gpu) + ".old" // the last daemon's log may say why it went
	err := errors.Join(os.RemoveAll(m.Pipe(gpu)), m.Dir.remove(gpu, serverFile), os.RemoveAll(old),
		ignoreMissing(os.Rename(m.log(gpu), old)))
	if err != nil {
		return err
	}
	err = m.launch(ctx, gpu, m.Multiuser)
	if errors.Is(err, errOneUser) {
		err = m.launch(ctx, gpu, false)
	}
	return err
}

// errOneUser says that the driver's daemon has no -multiuser-server. Those of 470, 535 and 550 then take the command
// line for none, and look for a daemon to talk to.
var errOneUser = errors.New("the driver's MPS knows no -multiuser-server")

// launch starts the daemon, for all users or for the servers of one after the other, and waits until it answers.
func (m *MPS) launch(ctx context.Context, gpu int, multiuser bool) error {
	for _, d := range []string{m.Pipe(gpu), m.log(gpu)} {
		if err := os.MkdirAll(d, 0o700); err != nil { // until letIn
			return err
		}
	}
	args := []string{"-d"}
	if multiuser {
		args = append(args, "-multiuser-server")
		if err := m.Dir.remove(gpu, userFile); err != nil {
			return err
		}
	} else if err := put(m.Dir.gpu(gpu, userFile), nil, 0o644); err != nil {
		return err
	}
	c, _ := card(m.Cards, gpu)
	cmd := exec.CommandContext(ctx, m.Control, args...)
	cmd.Env = append(m.environ(gpu), "CUDA_VISIBLE_DEVICES="+cmp.Or(c.UUID, strconv.Itoa(gpu)))
	out, err := detached(cmd, "")
	if multiuser && err != nil && strings.Contains(out, "Cannot find MPS control daemon process") {
		return errOneUser
	}
	if err != nil {
		return fmt.Errorf("start MPS daemon: %w: %.200s", err, strings.TrimSpace(out))
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

// detached runs a command with the given input and returns what it prints. The command has a session of its own: what
// hasn't one is killed when the prolog ends. At the deadline its whole group is killed; a descriptor that is kept open
// longer doesn't hold the job up. A hook that is killed takes the command along, though not the daemon that it has
// started.
func detached(cmd *exec.Cmd, input string) (string, error) {
	in, err := inMemory(input)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := inMemory("")
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = "/"
	err = cmd.Run()
	return printed(out), err
}

func (m *MPS) environ(gpu int) []string {
	return append([]string{
		"PATH=" + strings.Join(serverPath(m.Control), ":"),
		"CUDA_MPS_PIPE_DIRECTORY=" + m.Pipe(gpu), "CUDA_MPS_LOG_DIRECTORY=" + m.log(gpu),
	}, m.Env...)
}

// serverPath is where a daemon looks for the server: beside itself first, as a driver that isn't the system's has them.
func serverPath(control string) []string {
	dirs := []string{filepath.Dir(control)}
	if real, err := filepath.EvalSymlinks(control); err == nil && filepath.Dir(real) != dirs[0] {
		dirs = append(dirs, filepath.Dir(real))
	}
	return append(dirs, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
}

// command gives the daemon one command and returns its answer.
func (m *MPS) command(ctx context.Context, gpu int, line string) (string, error) {
	cmd := exec.CommandContext(ctx, m.Control)
	cmd.Env = m.environ(gpu)
	out, err := detached(cmd, line+"\n")
	if err != nil {
		return "", fmt.Errorf("%s: %w: %.200s", line, err, strings.TrimSpace(out))
	}
	return out, nil
}

// question gives the daemon one command that it is to answer soon.
func (m *MPS) question(ctx context.Context, gpu int, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, m.Answer)
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

// present reports whether a daemon listens at the GPU's control socket. It sends no query and may be called as any
// user. Neither the socket's file nor a pid file says so: the file outlives its daemon, and the pid file, which drivers
// from 550 on write, any user can write. A listener of another user than root or this process's own is none.
func (m *MPS) present(gpu int) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(m.Pipe(gpu), "control")})
	if errors.Is(err, unix.EAGAIN) {
		return true // so many wait for it already
	}
	if err != nil {
		return false
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

// Release ends the GPU's daemon. The caller holds the GPU's lock and has seen that no job shares the GPU any more.
func (m *MPS) Release(ctx context.Context, gpu int) error {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return nil // there is none
	}
	all := m.running(gpu, controlName, serverName)
	bounded, cancel := context.WithTimeout(ctx, quit+m.Answer)
	_, err := m.command(bounded, gpu, fmt.Sprintf("quit -t %d", int(quit.Seconds())))
	if bounded.Err() == nil {
		// It has acknowledged, and may take a moment to end. The exit status says nothing: after a server has failed it is
		// 0 or 1, as it happens.
		runs := func(pid int) bool { return slices.Contains([]string{controlName, serverName}, program(m.Proc, pid)) }
		for ends := time.Now().Add(m.Answer / 3); slices.ContainsFunc(all, runs) && time.Now().Before(ends) &&
			bounded.Err() == nil; {
			time.Sleep(20 * time.Millisecond)
		}
	}
	cancel()
	// What is left hangs, or has lost its daemon, and is of no use.
	killed, forced := m.clear(gpu)
	if killed > 0 {
		forced = errors.Join(fmt.Errorf("the MPS daemon did not end by itself, %d of its processes were killed", killed), err,
			forced)
	}
	return forced
}

// clear ends by force what there is of a GPU's daemon and servers, and returns how many processes that were. The caller
// holds the GPU's lock and has seen that no job shares the GPU.
func (m *MPS) clear(gpu int) (killed int, err error) {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return 0, nil // there is nothing, as at nearly all prologs
	}
	killed = m.kill(gpu, controlName, serverName)
	return killed, errors.Join(os.RemoveAll(m.Pipe(gpu)), m.Dir.remove(gpu, serverFile), m.Dir.remove(gpu, userFile))
}

// kill ends with SIGKILL the processes of the named programs that belong to the
// GPU's pipe directory, and returns how many there were.
func (m *MPS) kill(gpu int, names ...string) int { return m.killOf(gpu, m.Dir.served(gpu), names...) }

// killOf is kill where the served user is known.
func (m *MPS) killOf(gpu int, served int64, names ...string) (n int) {
	for _, pid := range pids(m.Proc) {
		is := func() bool { return m.runs(gpu, pid, served, names) }
		if is() && killIf(pid, is) {
			n++
		}
	}
	return n
}

// running are the processes of the named programs that belong to the GPU's pipe directory.
func (m *MPS) running(gpu int, names ...string) (found []int) {
	served := m.Dir.served(gpu)
	for _, pid := range pids(m.Proc) {
		if m.runs(gpu, pid, served, names) {
			found = append(found, pid)
		}
	}
	return found
}

// runs reports whether a process is of one of the named programs and belongs to the GPU's pipe directory. It is known
// by its program's name and by the environment that it was started with: a pid file may be of a process that has long
// been another. Any user can start processes like that, by the thousand. So a daemon is root's, or this process's own
// user's, a server that (one for all users is root's, seen on 555) or the served user's, and of others nothing more is
// read.
func (m *MPS) runs(gpu, pid int, served int64, names []string) bool {
	if !short(m.Proc, pid) {
		return false
	}
	of := owner(m.Proc, pid)
	ours := of == 0 || of == int64(os.Geteuid())
	if !ours && of != served {
		return false
	}
	name := program(m.Proc, pid)
	return slices.Contains(names, name) && (ours || name == serverName) &&
		has(m.Proc, pid, "CUDA_MPS_PIPE_DIRECTORY="+m.Pipe(gpu))
}

const (
	controlLog = "control.log"
	serverLog  = "server.log"
)

// readLog returns the whole lines that were added to a log beyond the first n bytes, 64 KiB at most, and where they
// end.
func (m *MPS) readLog(gpu int, name string, n int64) (string, int64) {
	f, err := os.Open(filepath.Join(m.log(gpu), name))
	if err != nil {
		return "", 0
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", 0
	}
	size := info.Size()
	if size < n {
		n = 0 // another log
	}
	from := max(n, size-64<<10)
	text, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return "", n
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	return string(text), from + int64(len(text))
}
