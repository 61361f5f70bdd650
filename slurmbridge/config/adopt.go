package config

import (
	"cmp"
	"fmt"
	"regexp"

	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
)

// ruleNames are a partition's, an account's, a QOS', a user's or a reservation's: anything else could not be a word of
// the gate file.
var ruleNames = settings.Rule{
	Takes: "letters, digits, '_', '.', '@', '+' and '-'", Some: true,
	Right: regexp.MustCompile(`^[A-Za-z0-9_.@+-]{1,128}$`).MatchString,
}

// complete gives rules that name no contract the default one.
func complete(rules []adopt.Rule) []adopt.Rule {
	for i := range rules {
		rules[i].MaxSlowdown = cmp.Or(rules[i].MaxSlowdown, adopt.DefaultMaxSlowdown)
	}
	return rules
}

// ReadRules reads a file of rules: an adopt section by itself.
func ReadRules(file string) ([]adopt.Rule, error) {
	var only struct {
		Adopt []adopt.Rule `mapstructure:"adopt"`
	}
	if _, err := settings.Load(file, &only, settings.Source{
		Defaults: []byte("adopt: []"),
		Rules:    source(nil).Rules,
	}); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if len(only.Adopt) == 0 {
		return nil, fmt.Errorf("%s: it has no rules (a list below adopt)", file)
	}
	return complete(only.Adopt), nil
}

// AdoptPolicy is what the settings say about adoption, nil = nothing is adopted. uid returns the number of a user.
func (c *Config) AdoptPolicy(uid func(name string) (uint32, bool)) *adopt.Policy {
	if len(c.Adopt) == 0 {
		return nil
	}
	return &adopt.Policy{
		Rules: c.Adopt, Active: c.AdoptMode == "active", Percent: c.AdoptPercent,
		Delay: c.AdoptDelay, OutFile: c.AdoptOptOut, UID: uid,
	}
}
