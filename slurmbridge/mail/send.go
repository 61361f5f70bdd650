package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// sendmails are where a machine has its MTA's program for mails.
var sendmails = []string{"/usr/sbin/sendmail", "/usr/lib/sendmail"}

// errNoProgram: nothing here sends mails.
var errNoProgram = errors.New("no program here sends mails")

// Program is the first program that is there: the site's (mail_program), which must be, Slurm's MailProg, or sendmail.
func Program(site, mailProg string) (string, error) {
	if site != "" {
		if _, err := exec.LookPath(site); err != nil {
			return "", err
		}
		return site, nil
	}
	for _, p := range append([]string{mailProg}, sendmails...) {
		if filepath.IsAbs(p) {
			if _, err := exec.LookPath(p); err == nil {
				return p, nil
			}
		}
	}
	others := strings.Join(sendmails, ", ")
	return "", fmt.Errorf("%w: neither Slurm's MailProg (%q) nor %s", errNoProgram, mailProg, others)
}

// sending is how long a mail program may take.
const sending = 30 * time.Second

// Send hands a mail to a program. One called sendmail gets all of it as its input; another one is called as slurmctld
// calls MailProg, PROGRAM -s SUBJECT ADDRESS, with the text as its input. sent reports whether it took the mail to any
// address.
func Send(ctx context.Context, program string, to []string, subject, body string) (sent bool, err error) {
	if filepath.Base(program) == "sendmail" {
		err = run(ctx, message(to, subject, body), program, append([]string{"-i", "--"}, to...)...)
		return err == nil, err
	}
	var errs []error
	for _, address := range to {
		err := run(ctx, body, program, "-s", subject, address)
		sent, errs = sent || err == nil, append(errs, err)
	}
	return sent, errors.Join(errs...)
}

func run(ctx context.Context, input, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, sending)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	cmd.Dir, cmd.Stdin, cmd.Stderr, cmd.WaitDelay = "/", strings.NewReader(input), &said, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %.200s", program, err, strings.Join(strings.Fields(said.String()), " "))
	}
	return nil
}
