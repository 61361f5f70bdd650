package mps

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const help = `Commands:
  get_server_list
  get_server_status PID
  start_server -uid UID
  shutdown_server PID [-f]
  get_client_list PID
  ps [-p PID]
  terminate_client SERVER_PID CLIENT_PID
  get_default_active_thread_percentage
  set_default_active_thread_percentage PERCENTAGE
  quit [-t TIMEOUT]
`

// commands answer a line of the control program, at once or, for what takes time, when
// it is done.
var commands map[string]func(d *daemon, args []string, reply chan string)

func init() {
	commands = map[string]func(d *daemon, args []string, reply chan string){
		"help":                                 func(_ *daemon, _ []string, reply chan string) { reply <- help },
		"get_server_list":                      func(d *daemon, _ []string, reply chan string) { reply <- lines(d.pids()) },
		"get_server_status":                    ofServer(func(_ *daemon, s *serverProc, _ []string) string { return s.status + "\n" }),
		"get_client_list":                      ofServer(func(_ *daemon, s *serverProc, _ []string) string { return lines(s.clients) }),
		"shutdown_server":                      ofServer((*daemon).shutdown),
		"start_server":                         (*daemon).start,
		"ps":                                   func(d *daemon, args []string, reply chan string) { reply <- d.ps(args) },
		"terminate_client":                     ofServer((*daemon).terminate),
		"get_default_active_thread_percentage": func(d *daemon, _ []string, reply chan string) { reply <- d.percent + "\n" },
		"set_default_active_thread_percentage": func(d *daemon, args []string, reply chan string) { reply <- d.setPercent(args) },
		"quit":                                 (*daemon).quitCommand,
	}
}

func (d *daemon) command(line string, reply chan string) {
	f := strings.Fields(line)
	if len(f) == 0 {
		reply <- ""
		return
	}
	do, known := commands[f[0]]
	if !known {
		reply <- fmt.Sprintf("Unknown command: %s\n", f[0])
		return
	}
	do(d, f[1:], reply)
}

// ofServer makes a command of one that is about the server that its first argument
// names.
func ofServer(answer func(*daemon, *serverProc, []string) string) func(*daemon, []string, chan string) {
	return func(d *daemon, args []string, reply chan string) {
		if len(args) == 0 {
			reply <- "Missing PID\n"
			return
		}
		pid, err := strconv.Atoi(args[0])
		if s := d.servers[pid]; err == nil && s != nil {
			reply <- answer(d, s, args[1:])
			return
		}
		reply <- fmt.Sprintf("Server %s not found\n", args[0])
	}
}

func (d *daemon) shutdown(s *serverProc, args []string) string {
	s.draining = true
	if len(args) > 0 && args[0] == "-f" {
		d.sendExit(s)
	}
	return ""
}

func (d *daemon) terminate(s *serverProc, args []string) string {
	if pid, err := strconv.Atoi(strings.Join(args, " ")); err == nil {
		_ = send(s.conn, message{Op: opTerminate, PID: pid})
	}
	return ""
}

func (d *daemon) quitCommand(args []string, reply chan string) {
	timeout := time.Duration(0)
	if len(args) > 0 {
		s, err := strconv.ParseFloat(strings.Join(args[1:], " "), 64)
		if args[0] != "-t" || err != nil || !(s >= 0) || s > 1e6 {
			reply <- "Usage: quit [-t TIMEOUT]\n"
			return
		}
		timeout = max(time.Duration(s*float64(time.Second)), time.Millisecond)
	}
	d.quit(timeout, reply)
}

func lines(pids []int) string {
	var b strings.Builder
	for _, p := range pids {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// start answers when the user's server is ready. Behind another user's server
// that still has clients it answers at once: the server starts in its turn.
func (d *daemon) start(args []string, reply chan string) {
	if len(args) != 2 || args[0] != "-uid" {
		reply <- "Usage: start_server -uid UID\n"
		return
	}
	n, err := strconv.ParseUint(args[1], 10, 31)
	if err != nil {
		reply <- "Invalid user id\n"
		return
	}
	uid := int(n)
	if d.uid != 0 && uid != d.uid {
		reply <- "Operation not permitted\n"
		return
	}
	w := &waiting{uid: uid, done: reply}
	if s := d.active(); s != nil && s.uid != uid && len(s.clients) > 0 && !d.multiuser {
		w.done = make(chan string, 1)
		reply <- ""
	}
	d.pending = append(d.pending, w)
}

// ps prints the clients as the real control program does.
func (d *daemon) ps(args []string) string {
	only := -1
	if len(args) == 2 && args[0] == "-p" {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return "Invalid PID\n"
		}
		only = n
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s %-5s %-9s %-24s %-14s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
	for _, pid := range d.pids() {
		for i, c := range d.servers[pid].clients {
			if only >= 0 && c != only {
				continue
			}
			fmt.Fprintf(&b, "%-9d %-5d %-9d %-24s %-14s %s\n", c, i, pid, d.device(), namespace(c), commandOf(c))
		}
	}
	return b.String()
}

// device is the server's GPU as ps abbreviates it.
func (d *daemon) device() string {
	v := os.Getenv(VisibleEnv)
	if strings.HasPrefix(v, "GPU-") && len(v) > 22 {
		return v[:22]
	}
	return "all"
}

func namespace(pid int) string {
	s, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return "-"
	}
	return strings.Trim(strings.TrimPrefix(s, "pid:"), "[]")
}

func commandOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "-"
	}
	return strings.TrimSpace(string(b))
}

func (d *daemon) setPercent(args []string) string {
	if !d.volta {
		return "Operation not supported\n"
	}
	if len(args) != 1 {
		return "Usage: set_default_active_thread_percentage PERCENTAGE\n"
	}
	p, err := strconv.ParseFloat(args[0], 64)
	if err != nil || !(p > 0 && p <= 100) {
		return "Invalid percentage\n"
	}
	d.percent = strconv.FormatFloat(p, 'f', 1, 64)
	return d.percent + "\n"
}

// quit ends the daemon when its servers have no clients any more, or after the
// timeout (0 = never) with the clients they still have. reply may be nil.
func (d *daemon) quit(timeout time.Duration, reply chan string) {
	d.quitting = true
	if timeout > 0 {
		d.deadline = time.After(timeout)
	}
	if reply != nil {
		d.quitters = append(d.quitters, reply)
	}
}
