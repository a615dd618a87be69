package jsonrpc

// pending is the table of exchanges that wait for an answer, by id. Ids come from one counter, and an id's low bits are
// its slot, so that a look-up is one comparison and nothing is allocated after the table has reached its size. An id is
// skipped if its slot is still occupied by an older exchange.
type pending struct {
	slots []*Exchange
	n     int
	last  uint64
}

// add stores x with a new id.
func (p *pending) add(x *Exchange) {
	if 2*(p.n+1) > len(p.slots) {
		p.grow()
	}
	for {
		p.last++
		if slot := &p.slots[p.last&uint64(len(p.slots)-1)]; *slot == nil {
			*slot, x.id = x, p.last
			p.n++
			return
		}
	}
}

// grow doubles the table. Ids in different slots remain in different slots.
func (p *pending) grow() {
	old := p.slots
	p.slots = make([]*Exchange, max(16, 2*len(old)))
	for _, x := range old {
		if x != nil {
			p.slots[x.id&uint64(len(p.slots)-1)] = x
		}
	}
}

func (p *pending) get(id uint64) *Exchange {
	if len(p.slots) == 0 {
		return nil
	}
	if x := p.slots[id&uint64(len(p.slots)-1)]; x != nil && x.id == id {
		return x
	}
	return nil
}

// remove removes the exchange with this id and returns it, or nil if the id is unknown. The caller delivers its reply.
func (p *pending) remove(id uint64) *Exchange {
	x := p.get(id)
	if x != nil {
		p.slots[id&uint64(len(p.slots)-1)] = nil
		p.n--
	}
	return x
}

// shrink releases the table if it is empty. (Not in remove: under a steady load the table is empty often enough that
// allocating it again costs a tenth of the throughput.)
func (p *pending) shrink() {
	if p.n == 0 {
		p.slots = nil
	}
}

// each calls f for every exchange in the table; f may remove the one that it is called with.
func (p *pending) each(f func(*Exchange)) {
	for _, x := range p.slots {
		if x != nil {
			f(x)
		}
	}
}
