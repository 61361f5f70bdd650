package mps

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
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
	driver    int // branch
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
	status   int           // to exit with: that of the last server that failed
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
	conn     *net.UnixConn // nil for start_server
	pid, uid int
	asked    bool // the server was started for it
}

// Words of the real daemon, which ends without any where a socket's path is too long.
var (
	errRunning = errors.New("An instance of this daemon is already running") //nolint:revive,staticcheck // its words
	errNotRoot = errors.New("Only root user may enable -multiuser-server!")  //nolint:revive,staticcheck // its words
	errSilent  = errors.New("")
)

// mostPath is the longest path of a socket.
const mostPath = 107

// runDaemon is the control daemon's process. ready is called when it answers.
func runDaemon(st *gpusim.State, multiuser bool, ready func()) error {
	d := &daemon{
		dir: pipeDir(os.Getenv), multiuser: multiuser, uid: os.Getuid(), done: make(chan struct{}), driver: st.Driver(),
		volta: true, maxClients: gpusim.Slots,
	}
	for _, g := range st.Visible(nil) { // without a GPU it is the server that fails
		d.maxClients = min(d.maxClients, g.MaxClients())
		d.volta = d.volta && !g.SameUser()
		d.devices = append(d.devices, g.Name())
	}
	path := func(name string) string { return filepath.Join(d.dir, name) }
	switch err := os.MkdirAll(d.dir, 0o755); {
	case err != nil:
		return fmt.Errorf("Cannot access %s=%s", PipeEnv, d.dir) //nolint:revive,staticcheck // its words
	case len(path(controlSock)) > mostPath:
		return errSilent
	case multiuser && d.uid != 0:
		return errNotRoot
	}
	unix.Umask(0)
	lock, err := os.OpenFile(path(controlSock+"_lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errRunning
	}
	d.log = logTo("control.log", "Control", os.Getpid())
	d.log("Starting control daemon using socket %s", path(controlSock))
	// Every user's programs may ask for a server; the kernel identifies the client. The second socket is of no use here.
	l, err := listen(path(controlSock), 0o666)
	other, oerr := listen(path(controlSock+"_privileged"), 0o755)
	_ = os.Remove(path("log"))
	if err := errors.Join(err, oerr, unix.Mkfifo(path("log"), 0o777)); err != nil {
		return err
	}
	defer other.Close()
	// The sockets stay behind.
	defer func() { _, _ = os.Remove(path("log")), os.Remove(path(pidFile)) }()
	if d.driver >= 550 {
		if err := os.WriteFile(path(pidFile), fmt.Appendln(nil, os.Getpid()), 0o666); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	go d.accept(l)
	ready()
	<-d.done
	d.log("Exit with status %d", d.status)
	return nil
}

// listen makes a socket in place of a dead daemon's.
func listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	_ = os.Remove(path)
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, os.Chmod(path, mode)
}

// accept hears each connection's first word before it takes the next one: as the real daemon, which does one thing
// after the other, it answers nobody while a client says nothing.
func (d *daemon) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: let some close
			continue
		}
		d.log("Accepting connection...")
		in := bufio.NewScanner(c)
		if !in.Scan() {
			d.log("Unable to accept connection")
			_ = c.Close()
			continue
		}
		go d.serve(c, in)
	}
}

// serve serves a client until it leaves, or answers one command of a control program. in holds its first word.
func (d *daemon) serve(c *net.UnixConn, in *bufio.Scanner) {
	defer c.Close()
	pid, uid, err := peer(c)
	if err != nil {
		return
	}
	w := &waiting{conn: c, pid: pid, uid: uid}
	defer d.do(func() { d.left(w) })
	for more := true; more; more = in.Scan() {
		switch {
		case in.Text() == "client":
			d.do(func() { d.arrived(w) })
		case in.Text() == "fault":
			d.do(func() { d.fault(w) })
			fmt.Fprintln(c, "faulted")
		case uid != 0 && uid != d.uid:
			return
		default:
			var answer string
			words := append(strings.Fields(in.Text()), "", "") // at least a name and an argument
			d.do(func() {
				d.log("NEW UI")
				d.log("Cmd:%s", in.Text())
				answer = d.command(words[0], words[1:])
			})
			if words[0] == "quit" { // answered by the end of the daemon
				<-d.done
			}
			_, _ = io.WriteString(c, answer)
			d.log("UI closed")
			return
		}
	}
}

// serverOf is the user whose server serves a user's clients.
func (d *daemon) serverOf(uid int) int {
	if d.multiuser {
		return 0
	}
	return uid
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
		s.exit("exit")
	}
	if d.quitting && d.srv == nil {
		d.over.Do(func() { close(d.done) })
	}
}

// arrived has a client wait for its server.
func (d *daemon) arrived(w *waiting) {
	if d.uid != 0 && w.uid != d.uid {
		d.log("User %d is not served by the daemon of user %d", w.uid, d.uid)
		w.refuse()
		return
	}
	word := "Server already exists"
	if d.srv == nil || d.srv.uid != d.serverOf(w.uid) || d.srv.status != statusActive {
		word = "Server is not ready, push client to pending list"
	}
	d.log("NEW CLIENT %d from user %d: %s", w.pid, d.serverOf(w.uid), word)
	d.pending = append(d.pending, w)
}

// fault is what a memory fault in one client's kernel does to the server, which has lost the contexts of all its
// clients: before Volta it ends, later it serves again when they have left.
func (d *daemon) fault(w *waiting) {
	if d.srv == nil || !slices.Contains(d.srv.clients, w) {
		return
	}
	if !d.volta {
		d.fatal()
		d.srv.exit("fault")
	} else if d.driver >= 535 { // the words of its libcuda; before, server.log names nobody
		say := logTo("server.log", "Server", d.srv.pid)
		say("Client process %d encountered a fatal GPU error.", w.pid)
		say("Server is handling a fatal GPU error.")
		for _, c := range d.srv.clients {
			say("Status of client {%d, 1} is INACTIVE", c.pid)
		}
	}
	d.srv.status = statusFault
}

// fatal is what the daemon logs when its server says that it must end.
func (d *daemon) fatal() { d.log("Server encountered a fatal exception. Shutting down") }

// exit ends the server; word says why.
func (s *serverProc) exit(word string) { _, _ = fmt.Fprintln(s.stdin, word) }

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

func (w *waiting) refuse() {
	if w.conn != nil {
		_, _ = fmt.Fprintln(w.conn, "refused")
	}
}

// place gives w its server, or refuses it; false: it has to wait.
func (d *daemon) place(w *waiting) bool {
	uid := d.serverOf(w.uid)
	s := d.srv
	switch {
	case d.quitting, s == nil && w.asked: // the server that was started for it has failed
		w.refuse()
	case s == nil:
		w.asked = true
		if err := d.startServer(uid); err != nil {
			d.log("Failed to start server using uid %d. %v", uid, err)
			w.refuse()
			return true
		}
		return w.conn == nil
	case s.uid != uid || s.draining:
		s.draining, w.asked = true, false
		return false
	case w.conn == nil: // it is there
	case s.status != statusActive:
		return false
	case len(s.clients) >= d.maxClients:
		d.log("Client %d: server %d has all the clients it can serve (%d)", w.pid, s.pid, d.maxClients)
		w.refuse()
	default:
		s.clients = append(s.clients, w)
		_, _ = fmt.Fprintln(w.conn, "welcome", s.pid, strings.Join(d.devices, ","))
	}
	return true
}

// goCrash is the exit status that Go's runtime makes of SIGSEGV and SIGABRT, whatever the program has installed so far.
const goCrash = 2

// startServer starts a server process as the given user: the one on the daemon's PATH.
func (d *daemon) startServer(uid int) error {
	cmd := exec.Command(serverName)
	if cmd.Err != nil { // the real daemon finds out in a process that ends at once
		cmd = exec.Command("/bin/false")
	}
	if uid != d.uid {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin, err := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err := errors.Join(err, oerr, cmd.Start()); err != nil {
		return err
	}
	s := &serverProc{pid: cmd.Process.Pid, uid: uid, stdin: stdin, status: statusInit}
	d.srv = s
	d.log("Starting new server %d for user %d", s.pid, uid)
	go func() {
		word, _ := bufio.NewReader(out).ReadString('\n')
		d.do(func() {
			switch word {
			case "ready\n":
				s.status = statusActive
				d.log("NEW SERVER %d: Ready", s.pid)
			case "": // it has ended without a word
			default:
				d.fatal()
				logTo("server.log", "Other", s.pid)("Failed to start : %s", strings.TrimSpace(word))
			}
		})
		_ = cmd.Wait() // its status is looked at
		forget(s.pid)
		d.do(func() {
			status := cmd.ProcessState.ExitCode()
			if status == -1 || status == goCrash { // a signal: the real daemon logs 0
				status = 0
			}
			d.log("Server %d exited with status %d", s.pid, status)
			d.status = cmp.Or(status, d.status)
			d.srv = nil
		})
	}()
	return nil
}

// logTo returns what writes lines into a log file; nothing where that can't be opened.
func logTo(name, who string, pid int) func(format string, args ...any) {
	dir := cmp.Or(os.Getenv(LogEnv), "/var/log/nvidia-mps")
	_ = os.MkdirAll(dir, 0o755) // if not, there is no log
	f, _ := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return func(format string, args ...any) {
		fmt.Fprintf(f, "[%s %s %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), who, pid,
			fmt.Sprintf(format, args...))
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

// aboutServers are the commands about a server.
var aboutServers = []string{"get_server_status", "get_client_list", "shutdown_server"}

// command obeys a control program and returns its answer. args end with "", two where there are any.
func (d *daemon) command(name string, args []string) string {
	asked := cmp.Or(args[0], "0")
	s := d.srv
	if s != nil && asked != strconv.Itoa(s.pid) {
		s = nil
	}
	switch {
	case name == "get_server_list":
		if d.srv != nil {
			return fmt.Sprintln(d.srv.pid)
		}
	case name == "get_server_status" && d.driver >= 550 && args[0] == "":
		return "A server PID is required\n"
	case name == "terminate_client" && d.driver >= 535:
		return d.terminate(s, asked, args)
	case name == "start_server":
		return d.start(args)
	case name == "quit":
		d.quit(args)
	case name == "get_default_active_thread_percentage":
		return "100.0\n"
	case name == "get_server_status" && d.driver < 550, !slices.Contains(aboutServers, name):
		return fmt.Sprintf("Unknown command %q\n", name)
	case s == nil:
		return fmt.Sprintf("Server %s not found\n", asked)
	case name == "get_server_status":
		return s.status + "\n"
	case name == "get_client_list":
		out := ""
		for _, w := range s.clients {
			out += fmt.Sprintln(w.pid)
		}
		return out
	default: // shutdown_server
		s.draining = true
		if slices.Contains(args, "-f") {
			s.exit("exit")
		}
	}
	return ""
}

// terminate ends a client's work, so that its process can be killed without harm to its neighbours.
func (d *daemon) terminate(s *serverProc, server string, args []string) string {
	if s == nil {
		return fmt.Sprintf("Server %s not found\nServer %[1]s not found!\n1\n", server)
	}
	pid, _ := strconv.Atoi(args[1])
	if pid <= 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return fmt.Sprintf("Invalid process %d!\n1\n", pid)
	}
	for _, w := range s.clients {
		if w.pid == pid && d.volta {
			_, _ = fmt.Fprintln(w.conn, "terminated")
			return "0\n"
		}
	}
	return "1\n"
}

// start has the user's server start, now or after another user's, and says nothing of it.
func (d *daemon) start(args []string) string {
	uid, err := uint64(0), strconv.ErrSyntax
	if args[0] == "-uid" && args[2] == "" {
		uid, err = strconv.ParseUint(args[1], 10, 31)
	}
	switch {
	case err != nil:
		return "A user id (UID) is required to start a new server\n"
	case d.uid != 0 && int(uid) != d.uid:
		return fmt.Sprintf("Insufficient privileges for UID %d\n", d.uid)
	}
	d.pending = append(d.pending, &waiting{uid: int(uid)})
	return ""
}

// quit ends the daemon when its server has no clients any more, or after the timeout with the clients that it still
// has.
func (d *daemon) quit(args []string) {
	d.quitting = true
	if args[0] != "-t" || args[1] == "" {
		return
	}
	s, _ := strconv.ParseFloat(args[1], 64)
	if d.driver >= 535 {
		d.log("quit command issued with timeout of %.0f", s)
	}
	time.AfterFunc(max(time.Duration(min(s, 1e6)*float64(time.Second)), time.Millisecond), func() {
		d.do(func() {
			if d.srv == nil {
				return
			}
			if d.driver >= 550 {
				d.log("Force shutting down server %d", d.srv.pid)
			}
			_ = unix.Kill(d.srv.pid, unix.SIGKILL)
		})
	})
}
