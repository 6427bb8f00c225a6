"""Sentence plans of the arithmetic word problems, and the code that reads them.

A plan is its name with the ranges of its operands, a question, and its steps as `expression :: what it counts ::
unit`. `$N`, `$M` are names, `$i`, `$j` things, `$p` a place, `$a` to `$e` operands; `(this|that)` a choice of words.
The results of the steps are `x`, `y`, `z`, `v` in this order; the last one is the answer.
"""

from typing import NamedTuple


class Step(NamedTuple):
    expression: str
    meaning: str
    unit: str


class Plan(NamedTuple):
    name: str
    operands: dict[str, tuple[int, int]]
    question: str
    steps: tuple[Step, ...]


def _read(block: str) -> Plan:
    header, *lines = block.splitlines()
    name, *ranges = header.split()
    spans = (item.replace("=", "-").split("-") for item in ranges)
    return Plan(
        name=name,
        operands={operand: (int(low), int(high)) for operand, low, high in spans},
        question=" ".join(line.strip() for line in lines if "::" not in line),
        steps=tuple(Step(*line.strip().split(" :: ")) for line in lines if "::" in line),
    )


_TEXT = """
harvest a=5-60 b=5-50 c=3-40
  $N (picks|gathers|collects) $a $i on Monday and $b on Tuesday, (then|and later) (gives|hands) $c to $M. How many
  $i (are left|remain)?
  a+b :: (the whole harvest|the full collection|everything $N has) :: $i
  x-c :: (what is left|the rest|what remains) :: $i

change a=2-9 b=2-9 c=30-99
  $N (has|owns) $c dollars and (buys|takes) $a $i (for|at) $b dollars each. How (much money is left|many dollars
  remain)?
  a*b :: (the price|the cost|the bill) :: dollars
  c-x :: (the money left|the change|what $N keeps) :: dollars

two_goods a=2-9 b=2-9 c=2-9 d=2-9
  $N buys $a $i (for|at) $b dollars each and $c $j (for|at) $d dollars each. (How much is the bill|What does $N
  pay)?
  a*b :: the (cost|price) of the $i :: dollars
  c*d :: the (cost|price) of the $j :: dollars
  x+y :: (the bill|the whole cost|the total) :: dollars

share a=5-50 b=5-40 c=2-6
  $N has $a $i and $M has $b. They (put|bring) them together and (share|split) them (equally|evenly) among $c
  (friends|children). How many $i does each get?
  a+b :: (the pile|the common pile|all they have) :: $i
  x/c :: (each share|one share|what each gets) :: $i

drive a=12-45 b=2-5 c=5-60
  A (bus|train|van) (goes|travels) $a miles an hour for $b hours and then $c more miles to the $p. How (far does
  it go|long is the trip in miles)?
  a*b :: (the first part|the early stretch) of the (trip|way) :: miles
  x+c :: (the whole trip|the full way|the distance) :: miles

way_left a=4-20 b=2-5 c=40-99
  The way to the $p is $c miles. $N (rides|cycles) $a miles an hour for $b hours. How many miles are (left|still
  to go)?
  a*b :: (the way so far|the distance covered|what is done) :: miles
  c-x :: (the way left|the rest of the way|what is to go) :: miles

orchard a=3-9 b=3-20 c=3-40
  (An orchard|A garden) (by|near) the $p has $a rows of $b trees. A storm (breaks|fells) $c of them. How many
  trees (stand|survive)?
  a*b :: (the orchard|the number of trees|the count before the storm) :: trees
  x-c :: (what still stands|the rest|the count after the storm) :: trees

eggs a=2-12 b=2-9 c=2-6
  $N has $a hens that lay $b eggs each. The eggs (go|are put) into boxes of $c. How many boxes (are filled|does $N
  fill)?
  a*b :: (the number of eggs|all the eggs|the egg count) :: eggs
  x/c :: (the number of boxes|the box count|what is filled) :: boxes

benches a=5-45 b=5-45 c=2-6
  $a boys and $b girls (visit|come to) the $p. They sit on benches, $c (children|kids) on each. How many benches
  (are taken|do they need)?
  a+b :: (the group|the whole class|the number of kids) :: children
  x/c :: (the number of benches|the bench count|what they need) :: benches

savings a=3-15 b=2-7 c=5-40 d=3-30
  $N saves $a dollars a week for $b weeks, (spends|pays) $c dollars on $i and (earns|gets) $d dollars (more|from
  $M). How (much|many dollars) does $N have?
  a*b :: (the savings|what is saved|the money saved) :: dollars
  x-c :: (the money after the $i|what is left|the rest) :: dollars
  y+d :: (the money now|the new sum|what $N has) :: dollars

library a=40-99 b=5-40 c=3-40 d=3-30
  A (library|school) owns $a (books|maps). $b are (lent|given) out, $c come back and $d new ones (arrive|are
  bought). How many are (there now|in the house)?
  a-b :: (what stays|the stock after lending|the rest) :: in stock
  x+c :: (the stock with the returns|the stock after that|the new stock) :: in stock
  y+d :: (the stock now|the final stock|the full stock) :: in stock

bus a=20-70 b=3-30 c=3-40 d=3-30
  A (bus|train) (leaves|starts) with $a people. At the $p $b get off and $c get on. (Later|Further on) $d get off.
  How many (ride on|people are left)?
  a-b :: the (load|number) after the first get off :: people
  x+c :: the (load|number) after the others get on :: people
  y-d :: (the load at the end|those who ride on|the final number) :: people

recipe a=2-9 b=3-9 c=2-30
  A cake (needs|takes) $a cups of flour. $N (bakes|makes) $b cakes and has $c cups. How many cups must $N
  (buy|get)?
  a*b :: (the flour needed|the need|all the flour) :: cups
  x-c :: (what is missing|the flour to buy|the missing part) :: cups

ages a=5-40 b=2-20
  $N is $a years old and $M is $b years older. How old are they (together|in sum)?
  a+b :: the age of $M :: years
  x+a :: (the sum of the ages|both ages together|the common age) :: years

times a=3-20 b=2-6
  $N has $a $i. $M has $b times as many. How many $i do they (have|own) (together|in all)?
  a*b :: (the part of $M|what $M has|what $M owns) :: $i
  x+a :: (the sum|what both have|the common stock) :: $i

factory a=4-20 b=3-8 c=2-30 d=2-6
  A (machine|worker) makes $a $i an hour for $b hours. $c are (broken|bad) and the rest go into (boxes|bags) of
  $d. How many are (filled|packed)?
  a*b :: (the output|what is made|the day's work) :: $i
  x-c :: (the good part|the good ones|what can be used) :: $i
  y/d :: (the packed number|what is filled|the count of packs) :: packs

drain a=40-99 b=2-12 c=2-8
  A (tank|pool) (holds|has) $a liters. $b liters a minute (run|flow) out for $c minutes. How many liters (stay|are
  left)?
  b*c :: (the water lost|what runs out|the loss) :: liters
  a-x :: (the water left|what stays|the rest) :: liters

pipes a=2-12 b=2-12 c=2-6
  (One|A first) pipe (brings|gives) $a liters a minute and (another|a second) $b. They run for $c minutes. How
  much water (comes in|flows)?
  a+b :: (the flow of both|the common flow|the rate) :: liters a minute
  x*c :: (the water|what comes in|the amount) :: liters

pages a=40-99 b=4-14 c=2-7
  $N (reads|studies) a book of $a pages, $b pages a day for $c days. How many pages (are left|remain)?
  b*c :: (the part read|what is read|the read part) :: pages
  a-x :: (the part not read|what remains|the rest of the book) :: pages

pages_rate a=30-99 b=5-50 c=2-6
  A (book|paper) has $a pages. $N has read $b and (wants|plans) to finish in $c days. How many pages a day (is
  that|are needed)?
  a-b :: (what is to be read|the rest of it|the part left) :: pages
  x/c :: (the daily part|the pages a day|the pace) :: pages

wage a=5-20 b=2-8 c=5-50
  $N (earns|makes) $a dollars an hour, works $b hours and (gets|finds) a bonus of $c dollars. How much (is
  that|does $N bring home)?
  a*b :: (the wage|the pay|the earned part) :: dollars
  x+c :: (the pay with the bonus|the money brought home|the whole pay) :: dollars

two_wages a=6-12 b=4-9 c=2-6 d=2-7
  $N works $b hours for $a dollars an hour, $M works $d hours for $c dollars an hour. How much more does $N
  (earn|get)?
  a*b :: (the pay of $N|what $N gets) :: dollars
  c*d :: (the pay of $M|what $M gets) :: dollars
  x-y :: (the gap|the difference|what $N gets on top) :: dollars

discount a=12-40 b=2-20 c=2-6
  $i cost $a dollars, but today they are $b dollars (cheaper|less). $N (buys|takes) $c. How much does $N
  (pay|spend)?
  a-b :: (the new price|the price today|the lower price) :: dollars
  x*c :: (the cost|the bill|what $N pays) :: dollars

tickets a=2-20 b=2-12 c=2-6
  $a (children|kids) and $b (adults|parents) go to the $p. (Each|Everyone) pays $c dollars. How much do they pay
  (together|in all)?
  a+b :: (the group|the number of guests|the whole party) :: people
  x*c :: (the price for all|the sum paid|the cost of the visit) :: dollars

fence a=5-40 b=5-40
  A (field|yard) (by|near) the $p is $a meters long and $b meters wide. How long is the fence (around it|on all
  four sides)?
  a+b :: (one long and one short side|half the fence|half the way around) :: meters
  x*2 :: (the fence|the way around|the whole border) :: meters

tiles a=4-15 b=3-9 c=3-50
  A (floor|wall) is $a tiles long and $b tiles (wide|high). $N has (laid|set) $c tiles. How many are (missing|to
  do)?
  a*b :: (the size|the full area|the number needed) :: tiles
  x-c :: (the missing part|what is to do|the open area) :: tiles

concert a=3-12 b=2-8 c=4-40
  A (band|choir) at the $p (plays|sings) $a songs of $b minutes and (takes|makes) a break of $c minutes. How long
  is the (show|evening)?
  a*b :: (the music|the time of the songs|the time on stage) :: minutes
  x+c :: (the time with the break|the whole show|the length) :: minutes

parking a=2-8 b=5-20 c=3-30 d=3-40
  A (garage|car park) has $a (floors|levels) with $b cars each. $c cars (leave|drive off) and $d (arrive|come in).
  How many cars are there (now|then)?
  a*b :: (the cars at first|the count before|the first count) :: cars
  x-c :: (the cars that stay|the count in between|the rest) :: cars
  y+d :: (the cars now|the count at the end|the new count) :: cars

game a=10-60 b=3-40 c=3-40 d=3-40
  $N (starts|begins) with $a $i, wins $b, loses $c and (then|at last) wins $d. How many $i does $N have (now|at
  the end)?
  a+b :: (the stock after the first win|the higher stock|what $N has then) :: $i
  x-c :: (the stock after the loss|the lower stock|what is left) :: $i
  y+d :: (the stock at the end|the final stock|what $N has now) :: $i

album a=2-12 b=2-10
  An album has $a pages with $b (stamps|photos) on each. $N gives half of (them|all) to $M. How many does $N
  (keep|have left)?
  a*b :: (the album|the full album|all of them) :: pieces
  x/2 :: (the half|what $N keeps|what is left) :: pieces

bunches a=4-30 b=4-30 c=2-6 d=2-5
  $N (cuts|picks) $a red and $b white roses, ties bunches of $c and sells each for $d dollars. How much (money
  comes in|does $N earn)?
  a+b :: (the number of roses|all the roses|the rose count) :: roses
  x/c :: (the number of bunches|what can be tied|the bunches) :: bunches
  y*d :: (the money|the income|what $N earns) :: dollars

monkeys a=2-8 b=2-6 c=2-5
  The $p has $a (monkeys|bears). Each eats $b $i a day. How many $i do they (eat|need) in $c days?
  a*b :: (the need of one day|the daily need|what goes in a day) :: $i
  x*c :: (the need of all days|the whole need|what they eat) :: $i

bakery a=3-12 b=3-9 c=3-40 d=2-5
  $N (bakes|makes) $a trays of $b (rolls|buns), sells $c and (shares|splits) the rest among $d (friends|guests).
  How many does each (get|eat)?
  a*b :: (what is baked|the whole batch|the fresh batch) :: pieces
  x-c :: (what is not sold|the rest|what is left over) :: pieces
  y/d :: (what each gets|one part|each part) :: pieces

weather a=5-40 b=3-30 c=3-30
  At the $p it is $a degrees in the morning. It gets $b degrees (warmer|hotter) by noon and $c degrees
  (colder|cooler) by night. How (warm|cold) is it then?
  a+b :: (the heat at noon|the noon value|the top value) :: degrees
  x-c :: (the value at night|the night value|the last value) :: degrees

lift a=3-40 b=3-30 c=3-30 d=3-20
  A lift is on floor $a. It goes up $b floors, down $c and up $d (more|again). On which floor does it (stop|end)?
  a+b :: (the first stop|the floor after going up|the high point) :: floors up
  x-c :: (the second stop|the floor after going down|the low point) :: floors up
  y+d :: (the last stop|the final floor|the end point) :: floors up

laps a=2-9 b=2-8 c=2-8 d=5-12
  $N runs $a laps of $b minutes and walks $c laps of $d minutes (around|by) the $p. How (long does it take|many
  minutes is that)?
  a*b :: (the running time|the time of the run) :: minutes
  c*d :: (the walking time|the time of the walk) :: minutes
  x+y :: (the time for both|the whole time|the sum) :: minutes

theater a=4-12 b=4-12 c=3-40 d=2-20
  A (hall|theater) has $a rows of $b seats. $c seats are (empty|free) and $d guests stand. How many guests are
  (there|in the house)?
  a*b :: (the room|the number of seats|the seat count) :: seats
  x-c :: (the guests who sit|the taken seats|the seated part) :: guests
  y+d :: (the guests with those who stand|all the guests|the full house) :: guests

rent a=4-20 b=2-7 c=4-40 d=2-5
  $d (friends|students) rent a room for $a dollars a day for $b days and pay a fee of $c dollars. They
  (share|split) the cost. How much does each (pay|give)?
  a*b :: (the rent|the price of the room|the room) :: dollars
  x+c :: (the rent with the fee|the whole cost|the bill) :: dollars
  y/d :: (the part of each|what each pays|one part) :: dollars

pickers a=3-12 b=2-6 c=2-20
  $N (picks|finds) $a $i a day for $b days. $M (picks|finds) $c fewer in all. How many $i do they have
  (together|in all)?
  a*b :: (the part of $N|what $N brings) :: $i
  x-c :: (the part of $M|what $M brings) :: $i
  x+y :: (both parts|the sum|what they have) :: $i

unit_price a=12-90 b=2-6 c=2-9
  $b $i cost $a dollars. How (much do|many dollars do) $c $i cost at the (same price|same $p)?
  a/b :: (the price of one|the single price|one of them) :: dollars
  x*c :: (the price of all|the cost|what they cost) :: dollars

walk a=6-60 b=2-6 c=2-8 d=2-30
  $N (walks|hikes) $a miles in $b days. At that (speed|pace) $N goes on for $c days and then rides $d miles to the
  $p. How many miles (follow|come after the first part)?
  a/b :: (the way of one day|the daily way|the pace) :: miles
  x*c :: (the way on foot|the second walk|the walked part) :: miles
  y+d :: (the way with the ride|the whole way|the sum) :: miles

teams a=12-80 b=3-6 c=2-6 d=2-15
  $a players (form|make) teams of $b. Each team needs $c balls and $d balls are (there|ready). How many balls are
  (missing|to be bought)?
  a/b :: (the number of teams|the teams|the team count) :: teams
  x*c :: (the need|the balls needed|what they need) :: balls
  y-d :: (the missing balls|what is missing|the gap) :: balls

notes a=2-19 b=2-40 c=2-30
  $N has $a five dollar notes and $b dollars in coins. $N (gives|lends) $M $c dollars. How much does $N
  (keep|still have)?
  a*5 :: (the worth of the notes|the paper money|the notes) :: dollars
  x+b :: (the money at first|notes and coins|all the money) :: dollars
  y-c :: (the money kept|the rest|what is left) :: dollars

fewer a=15-50 b=2-14 c=2-6
  $N has $a $i and $M has $b (fewer|less). They (share|split) all of them among $c (friends|guests). How many does
  each get?
  a-b :: (the part of $M|what $M has) :: $i
  a+x :: (all of them|both parts|the sum) :: $i
  y/c :: (each part|what each gets|one part) :: $i

sheep a=30-99 b=5-50 c=2-6
  $N has $a (sheep|goats), sells $b and (keeps|puts) the others in $c pens of the same size. How many (animals
  are|live) in each pen?
  a-b :: (the herd left|the animals kept|what is not sold) :: animals
  x/c :: (the size of a pen|the number in a pen|one pen) :: animals

ribbon a=50-99 b=5-25 c=5-25 d=2-5
  $N has $a inches of (ribbon|rope), cuts off $b and then $c and makes $d (equal|even) pieces of the rest. How
  long is a piece?
  b+c :: (what is cut off|the used part) :: inches
  a-x :: (what is left|the rest) :: inches
  y/d :: (a piece|one piece|the length of a piece) :: inches

homework a=4-20 b=4-20 c=3-20 d=2-6
  $N has $a (math|history) and $b (art|music) (tasks|questions). $c are done. Each takes $d minutes. How many
  minutes are left?
  a+b :: (the number of tasks|all the work|the whole list) :: tasks
  x-c :: (the open tasks|the rest|what is to do) :: tasks
  y*d :: (the time left|the time for the rest|the needed time) :: minutes

workshop a=4-12 b=4-9 c=2-6 d=2-8 e=3-30
  $N makes $b $i a day for $a days, sells $d on each of $c (days|trips), and $M brings $e more. How many $i are
  (there|in the shop)?
  a*b :: (what is made|the work of $N) :: $i
  c*d :: (what is sold|the sales) :: $i
  x-y :: (what is left|the rest) :: $i
  z+e :: (the stock now|the stock with the new ones) :: $i

budget a=2-6 b=4-12 c=2-6 d=2-8 e=50-99
  $N has $e dollars for a trip to the $p: $a nights at $b dollars and $c meals at $d dollars. How much (is
  left|does $N bring back)?
  a*b :: (the nights|the cost of the nights) :: dollars
  c*d :: (the meals|the cost of the meals) :: dollars
  x+y :: (the cost of the trip|both costs) :: dollars
  e-z :: (the money left|what is left) :: dollars
"""

PLANS = tuple(_read(block) for block in _TEXT.strip().split("\n\n"))
