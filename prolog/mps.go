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

// MPS runs one control daemon per shared GPU: a fault in a daemon of several GPUs would spread to all of them.
type MPS struct {
	Dir Dir
	// Control is the path of nvidia-cuda-mps-control.
	Control string
	// Cards are the known GPUs. CUDA is given the index of a GPU that is not among them.
	Cards []Card
	// Multiuser starts daemons with -multiuser-server if the driver knows it (Volta and later, driver 555 and later): one
	// server for all users. Otherwise the server of the job's user is started before the first client connects.
	Multiuser bool
	// Env is added to the daemon's environment.
	Env []string
	// Answer is how long a daemon may take to answer before it counts as hung. It may take twice as long to start a
	// server, and a third as long to end.
	Answer time.Duration
	// Proc is where processes are looked for; "" = /proc.
	Proc string
}

// quit is how long a daemon has to end by itself.
const quit = time.Second

// Pipe is the GPU's CUDA_MPS_PIPE_DIRECTORY.
func (m *MPS) Pipe(gpu int) string { return m.Dir.gpu(gpu, "pipe") }

func (m *MPS) log(gpu int) string { return m.Dir.gpu(gpu, "log") }

// Ensure makes sure that the GPU's daemon runs and answers, and admits the user. A daemon that doesn't answer is
// replaced unless jobs use it: it may be slow on a busy node, and its jobs would fail without it. The caller holds the
// GPU's lock.
//
// ahead: start the user's server before the first client connects; serves reports when it is ready. If the client may
// never come, no server is started: in EXCLUSIVE_PROCESS mode it would keep all other processes off the GPU.
func (m *MPS) Ensure(ctx context.Context, gpu int, uid uint32, inUse, ahead bool) error {
	// One silent client stops a daemon for all users (555), and nothing ends that client.
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
	// The daemon may have served another user before.
	if err := m.letIn(gpu, uid); err != nil || !ahead || m.multiuser(gpu) {
		return err
	}
	_, err := m.command(ctx, gpu, fmt.Sprintf("start_server -uid %d", uid))
	return err
}

// multiuser reports whether the GPU's daemon serves all users, which needs the setting and a driver that knows it.
func (m *MPS) multiuser(gpu int) bool { return m.Multiuser && !m.Dir.oneUser(gpu) }

// letIn opens the daemon's folders to the served user, or to all users. It also closes the daemon's files that any user
// could write, and so could fill the file system of the jobs' files. Clients don't open these files: libcuda 470 to 555
// names neither.
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
	// A hung daemon would hold the pipe directory, and files of a dead one would keep a new one from starting. Servers
	// stay, because jobs may compute on them.
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

// errOneUser: the driver's control program has no -multiuser-server. Those of 470, 535 and 550 take the option for a
// client's command line and look for a running daemon.
var errOneUser = errors.New("the driver's MPS knows no -multiuser-server")

// launch starts the daemon, for all users or for one user at a time, and waits until it answers.
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

// detached runs a command in its own session with the given input and returns what it prints; without a session of its
// own the daemon would be killed at the end of the prolog. At the deadline the whole process group is killed. Output
// goes to a file, so a daemon that keeps its descriptors open doesn't delay the job. If the hook is killed the command
// ends too, but not a daemon that it started.
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
	cmd.Stdin = in
	cmd.Stdout = out
	cmd.Stderr = out
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

// serverPath lists the folders in which a daemon finds its server: first its own, because a driver may be installed
// outside the system's folders.
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

// question sends the daemon a command that takes it a moment only.
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

// present reports whether a daemon listens at the GPU's control socket. It sends no query and works as any user. The
// socket's file proves nothing, because it outlives the daemon; nor does the pid file of drivers from 550 on, which any
// user can write. A listener that is neither root's nor this process's user's doesn't count.
func (m *MPS) present(gpu int) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(m.Pipe(gpu), "control")})
	if errors.Is(err, unix.EAGAIN) {
		return true // its backlog is full
	}
	if err != nil {
		return false
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

// Release ends the GPU's daemon. The caller holds the GPU's lock and knows that no job shares the GPU.
func (m *MPS) Release(ctx context.Context, gpu int) error {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return nil // there is none
	}
	all := m.running(gpu, controlName, serverName)
	bounded, cancel := context.WithTimeout(ctx, quit+m.Answer)
	_, err := m.command(bounded, gpu, fmt.Sprintf("quit -t %d", int(quit.Seconds())))
	if bounded.Err() == nil {
		// It has acknowledged and may take a moment to end. Its exit status means nothing: after a server's failure it is 0
		// or 1 at random.
		runs := func(pid int) bool { return slices.Contains([]string{controlName, serverName}, program(m.Proc, pid)) }
		for ends := time.Now().Add(m.Answer / 3); slices.ContainsFunc(all, runs) && time.Now().Before(ends) &&
			bounded.Err() == nil; {
			time.Sleep(20 * time.Millisecond)
		}
	}
	cancel()
	// Processes that are left hang or have lost their daemon.
	killed, forced := m.clear(gpu)
	if killed > 0 {
		forced = errors.Join(fmt.Errorf("the MPS daemon did not end by itself, %d of its processes were killed", killed), err,
			forced)
	}
	return forced
}

// clear kills the GPU's daemon and servers and returns the number of killed processes. The caller holds the GPU's lock
// and knows that no job shares the GPU.
func (m *MPS) clear(gpu int) (killed int, err error) {
	if _, err := os.Stat(m.Pipe(gpu)); err != nil {
		return 0, nil // there is nothing, as at nearly all prologs
	}
	killed = m.kill(gpu, controlName, serverName)
	return killed, errors.Join(os.RemoveAll(m.Pipe(gpu)), m.Dir.remove(gpu, serverFile), m.Dir.remove(gpu, userFile))
}

// kill kills the processes of the named programs that belong to the GPU's pipe directory, and returns their number.
func (m *MPS) kill(gpu int, names ...string) int { return m.killOf(gpu, m.Dir.served(gpu), names...) }

// killOf is kill for a known served user.
func (m *MPS) killOf(gpu int, served int64, names ...string) (n int) {
	for _, pid := range pids(m.Proc) {
		is := func() bool { return m.runs(gpu, pid, served, names) }
		if is() && killIf(pid, is) {
			n++
		}
	}
	return n
}

// running returns the pids of the named programs that belong to the GPU's pipe directory.
func (m *MPS) running(gpu int, names ...string) (found []int) {
	served := m.Dir.served(gpu)
	for _, pid := range pids(m.Proc) {
		if m.runs(gpu, pid, served, names) {
			found = append(found, pid)
		}
	}
	return found
}

// runs reports whether a process is one of the named programs and belongs to the GPU's pipe directory. It goes by the
// program's name and the environment at its start, since the pid in a pid file may have been reused. Any user can start
// thousands of processes that look like these, so the owner is checked first: a daemon belongs to root or to this
// process's user, a server to one of them (a server for all users is root's, seen on 555) or to the served user.
// Nothing more is read of other users' processes.
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

// readLog returns the whole lines after the first n bytes of a log, at most its last 64 KiB, and the offset after them.
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
