package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/mail"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// mailTemplate is read where mail_template names no other file; it may be absent.
const mailTemplate = "/etc/slurmbridge/mail.tmpl"

func newNotify(s *shared) *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "notify",
		Short: "Mail owners of jobs whose GPUs do nothing, and reports of ended jobs on request",
		Long: `notify sends one mail about each job that has done nothing with its GPUs for idle_after,
once a day at most; an array is one job. Idle is what usage --idle lists, by the reports
of the nodes' agents: a job whose use isn't known is none (a node without an agent, a GPU
that doesn't answer, sharers that the driver doesn't tell apart while their GPU
computes, a MIG instance without figures of its own). Nothing is ever ended for it.

Owners who asked for it by --comment=share:report get a mail once their job has ended:
what it used, with whom it shared, what that cost and saved, as why says it.

Mails go to the job's --mail-user, as far as Slurm shows it (it does for jobs with a
--mail-type, and for MinJobAge after their end), else to USER@mail_domain, through
mail_program. --comment=share:no-mail keeps a job out. A user gets 50 mails a day at most.

At a terminal it shows what it would send and sends nothing (--dry-run). The timer
slurmbridge-notify.timer, which an admin has to enable, calls it every two minutes as
SlurmUser. It asks the daemon and reads the database; of two controllers only the one
that decides sends mails.`,
		Example: `  slurmbridge notify                        what would be sent
  slurmbridge notify --dry-run=false        send it now
  systemctl enable --now slurmbridge-notify.timer`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			if !c.Flags().Changed("dry-run") {
				f, is := s.Exact().(*os.File)
				dry = is && term.IsTerminal(int(f.Fd()))
			}
			var idle httpapi.IdleReport
			if err := ask(c.Context(), cfg, httpapi.IdlePath, &idle); err != nil {
				return err
			}
			if idle.Standby != "" {
				return s.Show([]sent{}, func() {
					s.printf("standby: the daemon of %s decides, and mails are sent there\n", idle.Standby)
				})
			}
			cl, err := client(cfg, nil)
			if err != nil {
				return err
			}
			st, err := cli.OpenStore(c.Context(), cfg)
			if err != nil {
				return err
			}
			defer st.Close()
			n := &notifier{cfg: cfg, slurm: cl, dry: dry, book: &mail.Book{DB: st.DB()}, now: time.Now()}
			runs, err := reported(c.Context(), past(st), n.now)
			if err != nil {
				return err
			}
			mails := mail.OfRuns(runs)
			if ago := n.now.Sub(idle.At); ago > idleKnown {
				err = fmt.Errorf("%w: the daemon's last poll was %s ago", errOldPoll, ago.Round(time.Minute))
			} else {
				mails = append(mail.OfIdle(idle.Jobs), mails...)
			}
			all, serr := n.send(c.Context(), mails)
			return errors.Join(err, serr, s.Show(all, func() { s.printSent(all, n) }))
		}),
	}
	askFlags(c)
	c.Flags().BoolVar(&dry, "dry-run", false, "show the mails and send none (default at a terminal)")
	return c
}

// idleKnown is how long ago a poll may have been for what it showed to hold: two of them are 10 minutes apart at most.
const idleKnown = 15 * time.Minute

// errOldPoll: the daemon's last poll is too old to send mails about.
var errOldPoll = errors.New("it isn't known which jobs do nothing now")

// reported returns the runs that ended lately and whose owners want a report.
func reported(ctx context.Context, h *history.History, now time.Time) (out []history.Run, err error) {
	of := history.Filter{From: now.Add(-mail.RunsFor), Judged: true, Reports: true, Latest: 1000}
	for r, err := range h.Runs(ctx, of) {
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b history.Run) int { return a.End.Compare(b.End) })
	return out, nil
}

// sent is a mail that was sent, or would be.
type sent struct {
	To      []string `json:"to"`
	Subject string   `json:"subject"`
	Text    string   `json:"text"`
}

func (s *shared) printSent(all []sent, n *notifier) {
	for _, m := range all {
		if n.dry {
			s.printf("To: %s\nSubject: %s\n\n%s\n", strings.Join(m.To, ", "), m.Subject, m.Text)
		} else {
			s.printf("to %s: %s\n", strings.Join(m.To, ", "), m.Subject)
		}
	}
	if n.dry {
		s.printf("%d mails would be sent through %s (--dry-run)\n", len(all), cmp.Or(n.program, "no program: there is none"))
	}
}

// notifier sends mails, or shows them.
type notifier struct {
	cfg   *config.Config
	slurm *slurm.Client
	book  *mail.Book
	dry   bool
	now   time.Time

	program, domain string // by which it sends, "" = there is none; of addresses
}

// send sends the mails that are due. A mail that fails doesn't hold up the next.
func (n *notifier) send(ctx context.Context, mails []mail.Mail) (out []sent, err error) {
	out = []sent{}
	t, err := n.template()
	if err != nil {
		return out, err
	}
	conf, err := n.slurm.Config(ctx)
	if err != nil {
		return out, err
	}
	if n.program, err = mail.Program(n.cfg.MailProgram, conf["MailProg"]); err != nil && !n.dry {
		return out, fmt.Errorf("%s: %w", n.cfg.Where("mail_program"), err)
	}
	n.domain = cmp.Or(n.cfg.MailDomain, conf["MailDomain"])
	var errs []error
	for i := range mails {
		m := &mails[i]
		due, err := mail.Due(ctx, n.book.DB, m, n.now)
		if err == nil && due {
			if text.Private(conf["PrivateData"], "jobs") {
				for k := range m.Runs {
					httpapi.ForOwner(&m.Runs[k])
				}
			}
			err = n.one(ctx, t, m, &out)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("mail about job %s: %w", m.Job, err))
		}
	}
	return out, errors.Join(errs...)
}

// errNoAddress: neither --mail-user nor the user's name is fit to be an address.
var errNoAddress = errors.New("its owner has no address that a mail program may be given")

// one sends a mail that is due.
func (n *notifier) one(ctx context.Context, t *mail.Template, m *mail.Mail, out *[]sent) error {
	user, err := n.slurm.MailUser(ctx, m.Ref())
	if err != nil {
		return err
	}
	to := mail.Addresses(user, m.User, n.domain)
	if len(to) == 0 {
		return errNoAddress
	}
	subject, body, err := t.Write(m, n.now)
	if err != nil {
		return err
	}
	if !n.dry {
		if claimed, err := n.book.Claim(ctx, m, n.now); err != nil || !claimed {
			return err
		}
		reached, serr := mail.Send(ctx, n.program, to, subject, body)
		if !reached {
			return errors.Join(serr, n.book.Drop(context.WithoutCancel(ctx), m, n.now))
		}
		err = serr // the mail has reached some addresses, which must not get it again
	}
	*out = append(*out, sent{to, subject, body})
	return err
}

// template is the site's, otherwise the built-in one.
func (n *notifier) template() (*mail.Template, error) {
	file, built := n.cfg.MailTemplate, etc.Mail
	if file == "" {
		file = mailTemplate
	}
	b, err := os.ReadFile(file)
	switch {
	case err == nil:
		built = string(b)
	case n.cfg.MailTemplate != "" || !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", n.cfg.Where("mail_template"), err)
	}
	t, err := mail.ParseTemplate(built)
	if err != nil {
		err = cli.Usage(fmt.Errorf("%s: %w", file, err))
	}
	return t, err
}
