package mps

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const help = `Commands:
  get_server_list
  get_server_status PID
  start_server -uid UID
  get_client_list PID
  ps
  quit [-t TIMEOUT]
`

// converse answers a control program's commands, one after the other.
func (d *daemon) converse(c *net.UnixConn) {
	if _, uid, err := peer(c); err != nil || uid != 0 && uid != d.uid {
		return
	}
	in := bufio.NewScanner(c)
	for in.Scan() {
		answer := make(chan string, 1)
		d.do(func() {
			d.log("NEW UI")
			d.log("Cmd:%s", in.Text())
			d.command(strings.Fields(in.Text()), answer)
		})
		if _, err := fmt.Fprintln(c, strconv.Quote(<-answer)); err != nil {
			return
		}
	}
}

// command answers at once or, for what takes time, when it is done. quit is answered by the end of the connection.
func (d *daemon) command(words []string, answer chan string) {
	name, args := "", words
	if len(words) > 0 {
		name, args = words[0], words[1:]
	}
	switch name {
	case "":
		answer <- ""
	case "help":
		answer <- help
	case "get_server_list":
		out := ""
		if d.srv != nil {
			out = fmt.Sprintln(d.srv.pid)
		}
		answer <- out
	case "get_server_status", "get_client_list":
		answer <- d.ofServer(name, args)
	case "ps":
		answer <- d.ps()
	case "start_server":
		d.start(args, answer)
	case "quit":
		d.quit(args, answer)
	default:
		answer <- fmt.Sprintf("Unknown command: %s\n", name)
	}
}

// ofServer answers what is asked of the server that the first argument names.
func (d *daemon) ofServer(what string, args []string) string {
	switch {
	case len(args) == 0:
		return "Missing PID\n"
	case d.srv == nil || args[0] != strconv.Itoa(d.srv.pid):
		return fmt.Sprintf("Server %s not found\n", args[0])
	case what == "get_server_status":
		return d.srv.status + "\n"
	}
	out := ""
	for _, w := range d.srv.clients {
		out += fmt.Sprintln(w.pid)
	}
	return out
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
	w := &waiting{uid: uid, ready: answer}
	if s := d.srv; s != nil && s.uid != uid && len(s.clients) > 0 && !d.multiuser {
		w.ready = make(chan string, 1)
		answer <- ""
	}
	d.pending = append(d.pending, w)
}

// ps prints the clients about as the real control program does.
func (d *daemon) ps() string {
	out := fmt.Sprintf("%-9s %-5s %-9s %-24s %s\n", "PID", "ID", "SERVER", "DEVICE", "COMMAND")
	if d.srv == nil {
		return out
	}
	for i, w := range d.srv.clients {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", w.pid)) // it may have ended
		out += fmt.Sprintf("%-9d %-5d %-9d %-24.22s %s\n", w.pid, i, d.srv.pid, d.devices[0], strings.TrimSpace(string(command)))
	}
	return out
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
