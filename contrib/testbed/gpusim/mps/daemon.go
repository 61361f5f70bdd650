package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
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
	serverLog *os.File
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

// waiting is a client, or a start_server (conn nil).
type waiting struct {
	conn     *net.UnixConn
	pid, uid int
	ready    chan string // start_server: answered when the server is ready
	asked    bool        // the server was started for it
}

// errRunning is what a second daemon of the same pipe directory says.
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
	logs := os.Getenv(LogEnv)
	if logs == "" {
		logs = "/var/log/nvidia-mps"
	}
	control := openLog(logs, "control.log")
	d.log, d.serverLog = newLog(control, "Control"), openLog(logs, "server.log")
	d.log("Starting control daemon using socket %s", filepath.Join(d.dir, controlSock))
	// Every user's programs may ask for a server; the kernel identifies the client.
	clients, err := listen(d.dir, controlSock, 0o666)
	if err != nil {
		return err
	}
	commands, err := listen(d.dir, privSock, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		for _, n := range []string{controlSock, privSock, serverSock, pidFile} {
			_ = os.Remove(filepath.Join(d.dir, n))
		}
	}()
	if err := os.WriteFile(filepath.Join(d.dir, pidFile), fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	go accept(clients, d.client)
	go accept(commands, d.converse)
	ready()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	select {
	case <-ctx.Done():
		d.do(func() { d.quitting = true; d.exit("exit") })
		<-d.done
	case <-d.done:
	}
	_ = clients.Close()
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
	d.volta = true
	for n, g := range visible(st) {
		if n == 0 || g.MaxClients() < d.maxClients {
			d.maxClients = g.MaxClients()
		}
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

func accept(l *net.UnixListener, f func(*net.UnixConn)) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some close
			continue
		}
		go func() {
			defer c.Close()
			f(c)
		}()
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
		select {
		case <-d.done:
		default:
			close(d.done)
		}
	}
}

// client serves a client until it leaves.
func (d *daemon) client(c *net.UnixConn) {
	pid, uid, err := peer(c)
	if err != nil {
		return
	}
	w := &waiting{conn: c, pid: pid, uid: uid}
	d.do(func() {
		d.log("Accepting connection...")
		if d.uid != 0 && uid != d.uid {
			d.log("User %d is not served by the daemon of user %d", uid, d.uid)
			refuse(w)
			return
		}
		d.pending = append(d.pending, w)
	})
	words := bufio.NewScanner(c)
	for words.Scan() {
		if words.Text() == "fault" {
			d.do(func() { d.fault(w) })
		}
	}
	d.do(func() { d.left(w) })
}

// fault is what a memory fault in one client's kernel does: all clients of the server lose their contexts. Before Volta
// the server ends with them.
func (d *daemon) fault(w *waiting) {
	if d.srv == nil || !slices.Contains(d.srv.clients, w) {
		return
	}
	d.srv.status = statusFault
	if d.volta {
		d.tellAll()
	} else {
		d.log("Server encountered a fatal exception. Shutting down") // the real daemon's words
		d.exit("fault")
	}
	d.log("Server %d: fault of client %d", d.srv.pid, w.pid)
}

func (d *daemon) tellAll() {
	for _, w := range d.srv.clients {
		_, _ = fmt.Fprintln(w.conn, "error", CodeLaunchFailure)
	}
}

// exit ends the server with the clients that it has; word says why.
func (d *daemon) exit(word string) {
	if d.srv != nil {
		d.tellAll()
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
	if w.conn == nil {
		w.ready <- "Failed to start MPS server\n"
		return
	}
	_, _ = fmt.Fprintln(w.conn, "error", CodeConnectionFailed)
	_ = w.conn.Close()
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
	case w.conn == nil:
		w.ready <- ""
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
	l, err := listen(d.dir, serverSock, 0o666)
	if err != nil {
		return err
	}
	defer l.Close()
	socket, err := l.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.ExtraFiles = []string{serverName}, []*os.File{socket, d.serverLog}
	if uid != d.uid {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(uid)}
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
		if word, _ := bufio.NewReader(out).ReadString('\n'); word == "ready\n" {
			d.do(func() {
				s.status = statusActive
				d.log("NEW SERVER %d: Ready", s.pid)
			})
		}
		_ = cmd.Wait() // its status is looked at
		d.do(func() {
			d.log("Server %d exited with status %d", s.pid, cmd.ProcessState.ExitCode())
			d.srv = nil
		})
	}()
	return nil
}

// credential is a user's identity. A uid without an account keeps its number as its group.
func credential(uid int) *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		if gid, err := strconv.ParseUint(u.Gid, 10, 32); err == nil {
			c.Gid = uint32(gid)
		}
	}
	return c
}

// openLog opens a log file; /dev/null where that can't be done.
func openLog(dir, name string) *os.File {
	_ = os.MkdirAll(dir, 0o755) // if not, there is no log
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		f, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return f
}

// newLog returns what writes MPS's log lines.
func newLog(f *os.File, name string) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Fprintf(f, "[%s %s %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), name, os.Getpid(), fmt.Sprintf(format, args...))
	}
}
