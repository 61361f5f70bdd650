package mps

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// daemon is the control daemon. Each event is one call of do.
type daemon struct {
	dir       string
	log       func(format string, args ...any)
	multiuser bool
	uid       int
	// Of the GPUs: their UUIDs, whether each is of Volta or later, and the least number of clients that any allows.
	devices    []string
	volta      bool
	maxClients int

	mu      sync.Mutex
	srv     *serverProc // nil = there is none
	pending []*waiting
	// quitting: no new clients; ends when the server has ended.
	quitting bool
	done     chan struct{} // closed at the end
	over     sync.Once
}

// serverProc is a server process as the daemon sees it.
type serverProc struct {
	pid, uid int
	stdin    io.WriteCloser
	status   string     // as get_server_status prints it
	clients  []*waiting // in order of arrival
	draining bool       // to end after its last client
}

const (
	statusInit   = "INITIALIZING"
	statusActive = "ACTIVE"
	statusFault  = "FAULT"
)

// waiting is a client, or a start_server.
type waiting struct {
	conn     *net.UnixConn
	pid, uid int
	started  chan string // start_server: its answer; nil for a client
	asked    bool        // the server was started for it
}

var errRunning = errors.New("An instance of this daemon is already running") //nolint:revive,staticcheck // the real daemon's words

// runDaemon is the control daemon's process. ready is called when it answers.
func runDaemon(multiuser bool, ready func()) error {
	d := &daemon{dir: pipeDir(os.Getenv), multiuser: multiuser, uid: os.Getuid(), done: make(chan struct{})}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("create pipe directory: %w", err)
	}
	lock, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errRunning
	}
	if err := d.cards(); err != nil {
		return err
	}
	d.log = newLog()
	socket, pid := filepath.Join(d.dir, controlSock), filepath.Join(d.dir, pidFile)
	d.log("Starting control daemon using socket %s", socket)
	addr, done, err := address(d.dir)
	if err != nil {
		return err
	}
	defer done()
	_ = os.Remove(socket) // a killed daemon's
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer func() { _, _ = os.Remove(socket), os.Remove(pid) }()
	// Every user's programs may ask for a server; the kernel identifies the client.
	if err := errors.Join(os.Chmod(socket, 0o666), os.WriteFile(pid, fmt.Appendln(nil, os.Getpid()), 0o644)); err != nil {
		return err
	}
	go d.accept(l)
	ready()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	select {
	case <-ctx.Done():
		d.do(func() { d.quitting = true; d.exit("exit") })
		<-d.done
	case <-d.done:
	}
	d.log("Exit")
	return nil
}

// cards reads the rules of the GPUs.
func (d *daemon) cards() error {
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	defer st.Close()
	d.volta, d.maxClients = true, gpusim.Slots
	for _, g := range visible(st) {
		d.maxClients = min(d.maxClients, g.MaxClients())
		d.volta = d.volta && !g.SameUser()
		d.devices = append(d.devices, g.UUID())
	}
	if len(d.devices) == 0 {
		return errors.New("no CUDA-capable device is detected")
	}
	if d.multiuser && (!d.volta || d.uid != 0) {
		return errors.New("-multiuser-server needs root and a GPU of Volta or later")
	}
	return nil
}

func (d *daemon) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some close
			continue
		}
		go func() {
			defer c.Close()
			d.serve(c)
		}()
	}
}

// serve serves a client until it leaves, or answers one command of a control program.
func (d *daemon) serve(c *net.UnixConn) {
	pid, uid, err := peer(c)
	if err != nil {
		return
	}
	w := &waiting{conn: c, pid: pid, uid: uid}
	defer d.do(func() { d.left(w) })
	for in := bufio.NewScanner(c); in.Scan(); {
		switch {
		case in.Text() == "client":
			d.do(func() {
				d.log("Accepting connection...")
				if d.uid != 0 && uid != d.uid {
					d.log("User %d is not served by the daemon of user %d", uid, d.uid)
					refuse(w)
				} else if !slices.Contains(d.pending, w) {
					d.pending = append(d.pending, w)
				}
			})
		case in.Text() == "fault":
			d.do(func() { d.fault(w) })
			fmt.Fprintln(c, "faulted")
		case uid != 0 && uid != d.uid:
			return
		default:
			answer := make(chan string, 1)
			d.do(func() {
				d.log("NEW UI")
				d.log("Cmd:%s", in.Text())
				d.command(strings.Fields(in.Text()), answer)
			})
			_, _ = io.WriteString(c, <-answer)
			return
		}
	}
}

// do changes the daemon's state, and serves clients that can be served then.
func (d *daemon) do(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	for len(d.pending) > 0 && d.place(d.pending[0]) {
		d.pending = d.pending[1:]
	}
	if s := d.srv; s != nil && (s.draining || d.quitting) && len(s.clients) == 0 && s.status != statusInit {
		d.exit("exit")
	}
	if d.quitting && d.srv == nil {
		d.over.Do(func() { close(d.done) })
	}
}

// fault is what a memory fault in one client's kernel does to the server, which has lost the contexts of all its
// clients: before Volta it ends, later it serves again when they have left.
func (d *daemon) fault(w *waiting) {
	if d.srv == nil || !slices.Contains(d.srv.clients, w) {
		return
	}
	d.srv.status = statusFault
	if !d.volta {
		d.log("Server encountered a fatal exception. Shutting down") // the real daemon's words
		d.exit("fault")
	}
	d.log("Server %d: fault of client %d", d.srv.pid, w.pid)
}

// exit ends the server; word says why.
func (d *daemon) exit(word string) {
	if d.srv != nil {
		_, _ = fmt.Fprintln(d.srv.stdin, word)
	}
}

func (d *daemon) left(w *waiting) {
	is := func(other *waiting) bool { return other == w }
	d.pending = slices.DeleteFunc(d.pending, is)
	if s := d.srv; s != nil {
		s.clients = slices.DeleteFunc(s.clients, is)
		if s.status == statusFault && len(s.clients) == 0 && d.volta {
			s.status = statusActive
		}
	}
}

func refuse(w *waiting) {
	if w.started != nil {
		w.started <- "Failed to start MPS server\n"
	} else {
		_, _ = fmt.Fprintln(w.conn, "refused")
	}
}

// place gives w its server, or refuses it; false: it has to wait.
func (d *daemon) place(w *waiting) bool {
	uid := w.uid
	if d.multiuser {
		uid = 0
	}
	s := d.srv
	switch {
	case d.quitting, s == nil && w.asked: // the server that was started for it has failed
		refuse(w)
	case s == nil:
		w.asked = true
		if err := d.startServer(uid); err != nil {
			d.log("Failed to start server for user %d: %v", uid, err)
			refuse(w)
			return true
		}
		return false
	case s.uid != uid || s.draining:
		s.draining, w.asked = true, false
		return false
	case s.status != statusActive:
		return false
	case w.started != nil:
		w.started <- ""
	case len(s.clients) >= d.maxClients:
		d.log("Client %d: server %d has all the clients it can serve (%d)", w.pid, s.pid, d.maxClients)
		refuse(w)
	default:
		d.log("NEW CLIENT %d from user %d: Server already exists", w.pid, w.uid)
		s.clients = append(s.clients, w)
		_, _ = fmt.Fprintln(w.conn, "welcome", s.pid, strings.Join(d.devices, ","))
	}
	return true
}

// startServer starts a server process as the given user.
func (d *daemon) startServer(uid int) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{serverName}
	if uid != d.uid {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s := &serverProc{pid: cmd.Process.Pid, uid: uid, stdin: stdin, status: statusInit}
	d.srv = s
	d.log("Starting new server %d for user %d", s.pid, uid)
	go func() {
		word, _ := bufio.NewReader(out).ReadString('\n')
		d.do(func() {
			if word == "ready\n" {
				s.status = statusActive
			}
			d.log("NEW SERVER %d: %s", s.pid, strings.TrimSpace(word))
		})
		_ = cmd.Wait() // its status is looked at
		forget(s.pid)
		d.do(func() {
			d.log("Server %d exited with status %d", s.pid, cmd.ProcessState.ExitCode())
			d.srv = nil
		})
	}()
	return nil
}

// newLog returns what writes the daemon's lines into its log file; nothing where that can't be opened.
func newLog() func(format string, args ...any) {
	dir := cmp.Or(os.Getenv(LogEnv), "/var/log/nvidia-mps")
	_ = os.MkdirAll(dir, 0o755) // if not, there is no log
	f, _ := os.OpenFile(filepath.Join(dir, "control.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return func(format string, args ...any) {
		fmt.Fprintf(f, "[%s Control %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(), fmt.Sprintf(format, args...))
	}
}

// peer returns the process at the other end, as the kernel knows it.
func peer(c *net.UnixConn) (pid, uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid, uid = int(cred.Pid), int(cred.Uid)
		}
	})
	return pid, uid, errors.Join(err, cerr)
}

// command answers at once or, for start_server, when the server is there. quit is answered by the end of the daemon.
func (d *daemon) command(words []string, answer chan string) {
	name, args := "", words
	if len(words) > 0 {
		name, args = words[0], words[1:]
	}
	out, clients := "", []*waiting(nil)
	if d.srv != nil {
		out, clients = fmt.Sprintln(d.srv.pid), d.srv.clients
	}
	switch name {
	case "":
		out = ""
	case "get_server_list":
	case "get_server_status", "get_client_list":
		switch known := strings.TrimSpace(out); {
		case len(args) == 0:
			out = "Missing PID\n"
		case known == "" || args[0] != known:
			out = fmt.Sprintf("Server %s not found\n", args[0])
		case name == "get_server_status":
			out = d.srv.status + "\n"
		default:
			out = ""
			for _, w := range clients {
				out += fmt.Sprintln(w.pid)
			}
		}
	case "start_server":
		d.start(args, answer)
		return
	case "quit":
		d.quit(args, answer)
		return
	default:
		out = fmt.Sprintf("Unknown command: %s\n", name)
	}
	answer <- out
}

// start answers when the user's server is ready. Behind another user's server
// that still has clients it answers at once: the server starts in its turn.
func (d *daemon) start(args []string, answer chan string) {
	if len(args) != 2 || args[0] != "-uid" {
		answer <- "Usage: start_server -uid UID\n"
		return
	}
	n, err := strconv.ParseUint(args[1], 10, 31)
	uid := int(n)
	switch {
	case err != nil:
		answer <- "Invalid user id\n"
		return
	case d.uid != 0 && uid != d.uid:
		answer <- "Operation not permitted\n"
		return
	}
	if s := d.srv; s != nil && s.uid != uid && len(s.clients) > 0 && !d.multiuser {
		answer <- ""
		answer = make(chan string, 1)
	}
	d.pending = append(d.pending, &waiting{uid: uid, started: answer})
}

// quit ends the daemon when its server has no clients any more, or after the timeout with the clients that it still has.
func (d *daemon) quit(args []string, answer chan string) {
	if len(args) > 0 {
		s, err := strconv.ParseFloat(strings.Join(args[1:], " "), 64)
		if args[0] != "-t" || err != nil || !(s >= 0) || s > 1e6 {
			answer <- "Usage: quit [-t TIMEOUT]\n"
			return
		}
		time.AfterFunc(max(time.Duration(s*float64(time.Second)), time.Millisecond), func() {
			d.do(func() { d.exit("exit") })
		})
	}
	d.quitting = true
}
